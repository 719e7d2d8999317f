"""The state of a switch: all its ports."""

import msgspec

from c4bench.errors import UsageError
from c4bench.inject import interfaces
from c4bench.inject.actions import json_of, run
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.model.fault import FaultRequest, SwitchPort


class _Link(msgspec.Struct, frozen=True):
    ifname: str = ""
    link_type: str = ""


class SwitchTarget(msgspec.Struct, frozen=True):
    """A switch's ports that are up."""

    ports: tuple[InterfaceTarget, ...]

    @property
    def listing(self) -> dict[str, str]:
        """Every port's sections."""
        return interfaces.join_listings(self.ports)


def examine(request: FaultRequest) -> SwitchTarget:
    """Examine its ports. Raises UsageError when the switch is not here."""
    return SwitchTarget(tuple(interfaces.examine(port) for port in ports(request)))


def ports(request: FaultRequest) -> list[SwitchPort]:
    """The Ethernet interfaces that are up, by name, without ifb devices."""
    try:
        links = json_of("ip", run(("ip", "-json", "link", "show", "up"), request.netns), tuple[_Link, ...])
    except OSError:
        raise UsageError(
            f"there is no switch {request.host} here: no network namespace {request.netns}; check the inventory's netns"
        ) from None
    return [
        SwitchPort(request.host, link.ifname, request.netns)
        for link in sorted(links, key=lambda link: link.ifname)
        if link.link_type == "ether" and not link.ifname.startswith(interfaces.IFB_PREFIX)
    ]
