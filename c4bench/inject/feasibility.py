"""Which faults the hosts and switches of an inventory can have: planned before anything is asked for, never applied.

The injector of each host plans the faults (`first_plan`), because a driver reads the host; here the answers are
collected.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import msgspec

from c4bench.errors import C4Error
from c4bench.inject import places, protocol
from c4bench.inject.controller import OWN_INJECTOR
from c4bench.inject.places import Place
from c4bench.inject.protocol import Refused
from c4bench.inventory import Inventory
from c4bench.model.fault import FaultRequest, FaultSpec, TargetKind
from c4bench.remote.local import LocalConnection
from c4bench.remote.protocol import Connection

AT_ONCE = 32
_TIMEOUT_S = 60.0
# Driver and witness only look at these when they are asked for.
_ANY_JOB, _ANY_RANK, _FIRST_GPU = "any", 0, 0


class Feasibility(msgspec.Struct, frozen=True):
    """Why not, by fault and place; "" where a place can have the fault. A fault of no place is not known to have any.

    A place is a NIC, a host (for its GPUs and processes too) or a switch (for its ports too). `planned` says that the
    hosts were asked, for faults with their default parameters: other ones may be another matter.
    """

    answers: Mapping[str, Mapping[str, str]]
    planned: bool = False

    def obstacle(self, fault: str) -> str:
        """Why no place can have the fault, as its driver says of the first; "" where some place can."""
        answers = self.answers.get(fault, {"": ""})
        if not answers:
            return "no host or switch that permits faults has what it happens to"
        return "" if "" in answers.values() else "; ".join(f"{where}: {why}" for where, why in [*answers.items()][:1])

    def obstacle_at(self, fault: str, place: str) -> str:
        """Why this place, by name, cannot have the fault; "" where it can, or was not asked."""
        return self.answers.get(fault, {}).get(place, "")

    def left_out(self, faults: Iterable[str]) -> dict[str, str]:
        """Those of the faults that no place can have, and why."""
        return {fault: why for fault in faults if (why := self.obstacle(fault))}


def place_name(place: Place) -> str:
    """The name under which `Feasibility` has a place."""
    return place.nic.name if place.nic is not None else place.host.name


def of_lab(specs: Mapping[str, FaultSpec]) -> Feasibility:
    """What the embedded lab can have: the catalogue says so, and the lab's own tests hold it to that."""
    return Feasibility({name: {"the lab": spec.not_in_lab} for name, spec in specs.items() if spec.not_in_lab})


def ask_hosts(
    inventory: Inventory,
    specs: Mapping[str, FaultSpec],
    connect: Callable[[str], Connection],
    python: Callable[[str], str],
) -> Feasibility:
    """Have all faults planned wherever the inventory permits faults. A host that cannot be asked can have none."""
    single = {name: spec for name, spec in specs.items() if not spec.parts}
    wanted = [request for spec in single.values() for request in _requests(spec, inventory)]
    by_host: dict[str, list[FaultRequest]] = {}
    for request in wanted:
        by_host.setdefault(request.host, []).append(request)

    def ask(host: str) -> list[str]:
        try:
            if by_host[host][0].switch:
                return _ask(LocalConnection(host), OWN_INJECTOR, by_host[host])
            with connect(host) as connection:
                return _ask(connection, (python(host), "-m", "c4bench.inject"), by_host[host])
        except C4Error as error:
            return [str(error)] * len(by_host[host])

    answers: dict[str, dict[str, str]] = {name: {} for name in single}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for host, found in zip(by_host, pool.map(ask, by_host), strict=True):
            for request, answer in zip(by_host[host], found, strict=True):
                answers[request.fault][request.nic.name if request.nic else host] = answer
    known = Feasibility(answers)
    compounds = {name: _of_parts(spec, known) for name, spec in specs.items() if spec.parts}
    return Feasibility(answers | compounds, planned=True)


def _requests(spec: FaultSpec, inventory: Inventory) -> Iterator[FaultRequest]:
    """A request for each place of the fault's kind that permits faults; a switch stands for all of its ports."""
    if spec.target in {TargetKind.PORT, TargetKind.SWITCH}:
        found = [places.parse(name, inventory) for name in inventory.switches]
    else:
        found = [place for host in inventory.hosts for place in _places(spec.target, Place(host))]
    for place in found:
        if place.host.disruptive:
            yield place.request(spec.name, {}, 30.0, 0.3, last_nic=True)


def _places(kind: TargetKind, host: Place) -> Sequence[Place]:
    change = msgspec.structs.replace
    match kind:
        case TargetKind.NIC:
            return [change(host, nic=nic) for nic in host.host.nics]
        case TargetKind.PROCESS:
            return [change(host, job=_ANY_JOB, rank=_ANY_RANK)]
        case TargetKind.GPU:
            return [change(host, gpu=_FIRST_GPU)]
    return [host]


def _ask(connection: Connection, injector: Sequence[str], requests: Sequence[FaultRequest]) -> list[str]:
    """What the injector of a host answers to each request: "" for a plan, otherwise why there is none."""
    answers = []
    with closing(connection.start([*injector, "try"])) as session:
        for request in requests:
            session.write_line(msgspec.json.encode(request).decode())
            reply = protocol.decode(session.read_line(_TIMEOUT_S))
            answers.append(reply.error if isinstance(reply, Refused) else "")
    return answers


def _of_parts(spec: FaultSpec, known: Feasibility) -> dict[str, str]:
    """A compound can be had where each of its parts can be had somewhere."""
    missing = known.left_out(part.fault for part in spec.parts)
    return {"any": next((f"{fault}: {why}" for fault, why in missing.items()), "")}
