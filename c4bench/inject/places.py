"""The target of a fault as written on the command line, looked up in the inventory."""

import re
from collections.abc import Sequence

import msgspec

from c4bench.errors import UsageError, meant
from c4bench.inventory import Inventory
from c4bench.model.fabric import Host, Nic
from c4bench.model.fault import AgentlessSwitch, FaultRequest, Value
from c4bench.remote.local import ssh_words

_RANK = re.compile(r"(?P<job>.+):(?P<rank>\d+)@(?P<host>.+)")
_FORMS = "HOST/NIC, SWITCH/PORT, HOST/gpuN, JOB:RANK@HOST, HOST or SWITCH"


class Place(msgspec.Struct, frozen=True):
    """A host, or a switch with the network namespace of its ports, and a part of it unless the whole is meant.

    `peers` are the NICs of another host that a witness of a NIC or of a whole host may probe. `switch` says how a
    switch is reached on which c4bench is not installed.
    """

    host: Host
    nic: Nic | None = None
    port: str | None = None
    netns: str | None = None
    gpu: int | None = None
    job: str | None = None
    rank: int | None = None
    peers: tuple[Nic, ...] = ()
    switch: AgentlessSwitch | None = None

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
            peers=self.peers,
            switch=self.switch,
        )


def parse(word: str, inventory: Inventory) -> Place:
    """`h5/0`, `leaf0/up1`, `h5/gpu0`, `train:2@h5`, `h5`, `leaf0`. Raises UsageError for what the inventory lacks."""
    rank = _RANK.fullmatch(word)
    if rank:
        return Place(_host(rank["host"], inventory), job=rank["job"], rank=int(rank["rank"]))
    name, slash, part = word.partition("/")
    if name in inventory.switches:
        netns = inventory.access[name].netns or None
        return Place(switch(name, inventory), port=part or None, netns=netns, switch=agentless(name, inventory))
    host = _host(name, inventory)
    if not slash:
        return Place(host, peers=peers_of(host, inventory.hosts))
    if part.startswith("gpu") and part[3:].isdigit():
        return Place(host, gpu=int(part[3:]))
    if part.isdigit():
        return Place(host, nic=nic(host, int(part)), peers=peers_of(host, inventory.hosts))
    raise UsageError(f"{word!r} is no target; write {_FORMS}")


def nic(host: Host, index: int) -> Nic:
    """The host's NIC of that index. Raises UsageError with those it has."""
    try:
        return host.nic(index)
    except LookupError as error:
        raise UsageError(f"{error.args[0]}; its NICs: {', '.join(nic.name for nic in host.nics) or 'none'}") from None


def peers_of(host: Host, hosts: Sequence[Host]) -> tuple[Nic, ...]:
    """A NIC for each plane of the host's: that of the next host in the inventory that has one there."""
    names = [other.name for other in hosts]
    after = names.index(host.name) + 1 if host.name in names else 0
    others = [other for other in (*hosts[after:], *hosts[:after]) if other.name != host.name]
    found: dict[int, Nic] = {}
    for nic in (nic for other in others for nic in other.nics if nic.address):
        found.setdefault(nic.plane, nic)
    return tuple(found[plane] for plane in dict.fromkeys(nic.plane for nic in host.nics) if plane in found)


def switch(name: str, inventory: Inventory) -> Host:
    """A switch as a host without NICs; its variable `c4` says whether faults are permitted there."""
    return Host(name, inventory.access[name].address, disruptive=inventory.facts[name].disruptive)


def agentless(name: str, inventory: Inventory) -> AgentlessSwitch | None:
    """How a switch of a stated operating system (`c4.os`) is reached; None for one where c4bench is installed."""
    system, access = inventory.facts[name].os, inventory.access[name]
    if not system:
        return None
    return AgentlessSwitch(system, () if access.connection == "local" else tuple(ssh_words(access)))


def _host(name: str, inventory: Inventory) -> Host:
    known = {host.name: host for host in inventory.hosts}
    if name in known:
        return known[name]
    near = meant(name, [*known, *inventory.switches], f"; a target is {_FORMS}")
    raise UsageError(f"{inventory.path} has no host or switch {name!r}{near}")
