"""What may be broken from this host: a file that deployment writes and only root can change.

A caller names a host, and a NIC by its number or a port by its name. Interfaces, devices and network namespaces are
taken from the file, and so is whether faults are permitted.
"""

import os
import re
import sys
from pathlib import Path

import msgspec

from c4bench.decoding import DecodingError, from_json
from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import privilege
from c4bench.inject.files import read_roots
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest

_BYTES_AT_MOST = 1 << 20
# Narrower than the kernel's names (dev_valid_name), so that no tool takes one for an option, a number or two words.
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,14}")
_DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}")
_LOOPBACK = "lo"


class PermittedHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host or switch. `netns` is where a switch's ports live, when not in this host's own network namespace."""

    disruptive: bool = False
    nics: tuple[Nic, ...] = ()
    netns: str | None = None


class Permitted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `targets.json`: hosts and switches by name."""

    hosts: dict[str, PermittedHost]


def configuration() -> Path:
    """The folder of this installation's configuration: `/etc/NAME` for one in `/opt/NAME`."""
    prefix = Path(sys.prefix)
    return Path("/etc") / (prefix.name if prefix.parent == Path("/opt") else "c4bench")


def load() -> Permitted | None:
    """Read `targets.json`; None where nothing is deployed. Raises UnhealthyError for a file that is not root's."""
    path = configuration() / "targets.json"
    if os.geteuid() != 0 and not os.access(path, os.R_OK):
        return None
    try:
        return from_json(read_roots(path, _BYTES_AT_MOST), Permitted)
    except FileNotFoundError:
        return None
    except DecodingError as error:
        raise UnhealthyError(f"{path} is damaged ({error}); deploy again") from None


def restrict(request: FaultRequest, permitted: Permitted | None) -> FaultRequest:
    """The request with everything but names taken from `permitted`.

    Where nothing is deployed, only who is root by login may describe a target. Raises UsageError for a target that
    does not exist, or where faults are not permitted.
    """
    if permitted is None:
        # Who may not become root here changes nothing, whatever it describes.
        if os.geteuid() == 0 and privilege.caller() != 0:
            raise UnhealthyError(
                f"there is no {configuration()}/targets.json; deploy (playbooks/deploy.yml), or log in as root"
            )
    else:
        request = _described(request, permitted)
    check_names(request)
    return request


def _described(request: FaultRequest, permitted: Permitted) -> FaultRequest:
    file = configuration() / "targets.json"
    host = permitted.hosts.get(request.host)
    if host is None:
        raise UsageError(f"{request.host!r} is not a host or switch in {file}; correct the name, or deploy again")
    if not host.disruptive:
        raise UsageError(
            f"{request.host} is not marked `disruptive: true` in {file}; set it in the inventory and deploy"
        )
    nic = None if request.nic is None else _nic(request, host, file)
    return msgspec.structs.replace(request, nic=nic, nics=host.nics, netns=host.netns)


def _nic(request: FaultRequest, host: PermittedHost, file: Path) -> Nic:
    assert request.nic is not None
    nics = {nic.index: nic for nic in host.nics}
    if request.nic.index not in nics:
        numbers = ", ".join(map(str, nics)) or "none"
        raise UsageError(f"{request.host} has no NIC {request.nic.index} in {file}; it has: {numbers}")
    return nics[request.nic.index]


def check_names(request: FaultRequest) -> None:
    """Raises UsageError for a name of an interface or device that a tool might take for something else."""
    nics = (*request.nics, *([request.nic] if request.nic else []))
    names = [(nic.netdev, _INTERFACE) for nic in nics] + [(nic.device, _DEVICE) for nic in nics]
    names += [(request.port, _INTERFACE)] if request.port is not None else []
    for name, syntax in names:
        if name and not syntax.fullmatch(name):
            raise UsageError(f"{name!r} is not the name of an interface or device; give letters, digits, '.', '_', '-'")
        if name == _LOOPBACK:
            raise UsageError(f"{name} is this host's loopback; name a NIC of the fabric")
