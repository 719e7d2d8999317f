"""The target of a fault as written on the command line, looked up in the inventory."""

import re

import msgspec

from c4bench.errors import UsageError, meant
from c4bench.inventory import Inventory
from c4bench.model.fabric import Host, Nic
from c4bench.model.fault import FaultRequest, Value

_RANK = re.compile(r"(?P<job>.+):(?P<rank>\d+)@(?P<host>.+)")
_FORMS = "HOST/NIC, SWITCH/PORT, HOST/gpuN, JOB:RANK@HOST, HOST or SWITCH"


class Place(msgspec.Struct, frozen=True):
    """A host, or a switch with the network namespace of its ports, and a part of it unless the whole is meant."""

    host: Host
    nic: Nic | None = None
    port: str | None = None
    netns: str | None = None
    gpu: int | None = None
    job: str | None = None
    rank: int | None = None

    def request(
        self, fault: str, parameters: dict[str, Value], lease_s: float, witness_s: float, *, last_nic: bool
    ) -> FaultRequest:
        """The request for a fault in this place."""
        return FaultRequest(
            fault=fault,
            host=self.host.name,
            nic=self.nic,
            job=self.job,
            rank=self.rank,
            parameters=parameters,
            lease_s=lease_s,
            witness_s=witness_s,
            port=self.port,
            netns=self.netns,
            gpu=self.gpu,
            nics=self.host.nics,
            last_nic=last_nic,
        )


def parse(word: str, inventory: Inventory) -> Place:
    """`h5/0`, `leaf0/up1`, `h5/gpu0`, `train:2@h5`, `h5`, `leaf0`. Raises UsageError for what the inventory lacks."""
    rank = _RANK.fullmatch(word)
    if rank:
        return Place(_host(rank["host"], inventory), job=rank["job"], rank=int(rank["rank"]))
    name, slash, part = word.partition("/")
    if name in inventory.switches:
        return Place(switch(name, inventory), port=part or None, netns=inventory.access[name].netns or None)
    host = _host(name, inventory)
    if not slash:
        return Place(host)
    if part.startswith("gpu") and part[3:].isdigit():
        return Place(host, gpu=int(part[3:]))
    if part.isdigit():
        return Place(host, nic=nic(host, int(part)))
    raise UsageError(f"{word!r} is no target; write {_FORMS}")


def nic(host: Host, index: int) -> Nic:
    """The host's NIC of that index. Raises UsageError with those it has."""
    try:
        return host.nic(index)
    except LookupError as error:
        raise UsageError(f"{error.args[0]}; its NICs: {', '.join(nic.name for nic in host.nics) or 'none'}") from None


def switch(name: str, inventory: Inventory) -> Host:
    """A switch as a host without NICs; its variable `c4` says whether faults are permitted there."""
    return Host(name, inventory.access[name].address, disruptive=inventory.facts[name].disruptive)


def _host(name: str, inventory: Inventory) -> Host:
    known = {host.name: host for host in inventory.hosts}
    if name in known:
        return known[name]
    near = meant(name, [*known, *inventory.switches], f"; a target is {_FORMS}")
    raise UsageError(f"{inventory.path} has no host or switch {name!r}{near}")
