"""Refuse well-formed requests that would disconnect more than intended."""

import os
from collections.abc import Iterable, Mapping

from c4bench.errors import UsageError
from c4bench.inject import hosts
from c4bench.inject.interfaces import netns_of
from c4bench.inject.journal_entries import Entry
from c4bench.inject.witness.link import running
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest, FaultSpec, TargetKind

_INTERFACES = frozenset({TargetKind.NIC, TargetKind.PORT})


def check(spec: FaultSpec, request: FaultRequest, listing: Mapping[str, str], in_force: Iterable[Entry]) -> None:
    """Raises UsageError for a fault on the interface of our own session, or on the last working NIC.

    `found` is the target's listing, `in_force` are the host's present faults.
    """
    if spec.target in _INTERFACES:
        _refuse_management(request, listing)
    if spec.target is TargetKind.NIC and spec.severs and not request.last_nic:
        _refuse_last(request, in_force)


def _refuse_management(request: FaultRequest, listing: Mapping[str, str]) -> None:
    interface = request.interface
    if hosts.management_interface(netns_of(interface)) == interface.netdev:
        raise UsageError(
            f"{request.where} carries the default route of {request.host}; name another, or use host.management_cut"
        )
    ours = (*os.environ.get("SSH_CONNECTION", "").split(), "", "", "")[2]
    if ours and any(f'"local": "{ours}"' in text for text in listing.values()):
        raise UsageError(f"{request.where} carries your own session ({ours}); name another NIC")


def _refuse_last(request: FaultRequest, in_force: Iterable[Entry]) -> None:
    hit = {entry.lease.request.nic for entry in in_force} | {request.nic}
    others: list[Nic] = [nic for nic in request.nics if nic not in hit]
    if not running(others):
        raise UsageError(f"{request.where} is the last working NIC of {request.host}; add --last-nic to allow that")
