"""Check every host, many in parallel, each in one session for the report and the clock."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from c4bench.decoding import DecodingError, decoding, from_json
from c4bench.doctor import capabilities, live
from c4bench.doctor.capabilities import Report
from c4bench.doctor.findings import HostSelfReport, MtuToPeer
from c4bench.errors import UnhealthyError
from c4bench.foreign_text import one_line
from c4bench.inventory import Access, Inventory
from c4bench.model.fabric import Host, Nic
from c4bench.remote import BARE_PYTHON, Connection, Session, connect
from c4bench.remote.clock import offset

AT_ONCE = 32
_TIMEOUT_S = 60.0
_LOOK = Path(__file__).with_name("look.py")
T = TypeVar("T")
Reach = Callable[[str, Access], Connection]


def look_at(
    inventory: Inventory,
    reach: Reach = connect,
    answered: Callable[[Report], None] = lambda _: None,
    apart_s: float = live.APART_S,
) -> list[Report]:
    """Check every host, in the order of the inventory; an unreachable one has only that in its report.

    Each report is passed to `answered` as soon as it is there, by several threads. Counters of links with errors are
    read twice, `apart_s` apart.
    """
    peers = ring(inventory.hosts)

    def inspect(host: Host) -> Report:
        try:
            report = _ask(host, inventory.access[host.name], peers[host.name], reach, apart_s)
        except UnhealthyError as error:
            report = capabilities.unreachable(host, str(error))
        answered(report)
        return report

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(inspect, inventory.hosts))


def ring(hosts: Sequence[Host]) -> dict[str, list[tuple[Nic, Nic]]]:
    """By host, each of its NICs with a peer: the NIC of the same plane on the next host. Every NIC is in two pairs."""
    pairs: dict[str, list[tuple[Nic, Nic]]] = {host.name: [] for host in hosts}
    planes: dict[int, list[Nic]] = {}
    for nic in (nic for host in hosts for nic in host.nics if nic.address):
        planes.setdefault(nic.plane, []).append(nic)
    for nics in planes.values():
        for position, nic in enumerate(nics):
            others = [*nics[position + 1 :], *nics[:position]]
            peer = next((other for other in others if other.host != nic.host), None)
            if peer:
                pairs[nic.host].append((nic, peer))
    return pairs


def _ask(
    host: Host, access: Access, peers: Sequence[tuple[Nic, Nic]], reach: Reach, apart_s: float = live.APART_S
) -> Report:
    with (
        reach(host.name, access) as connection,
        closing(connection.start([*BARE_PYTHON, _LOOK.read_text()])) as session,
    ):
        clock = offset(lambda: _answer(host, session, "clock", float))
        asked = {"python": access.python, "nics": [msgspec.to_builtins(nic) for nic in host.nics]}
        facts = _answer(host, session, f"look {_json(asked)}", HostSelfReport)
        mtus = [_mtu_to_peer(host, session, nic, peer) for nic, peer in peers]
        remarks, settings = live.examine(facts, partial(_outputs, host, session), apart_s)
    report = capabilities.evaluate(host, facts, clock, mtus)
    return msgspec.structs.replace(report, remarks=remarks, settings=settings)


def _outputs(host: Host, session: Session, commands: Sequence[Sequence[str]]) -> list[str]:
    return _answer(host, session, f"outputs {_json(commands)}", list[str])


def _mtu_to_peer(host: Host, session: Session, nic: Nic, peer: Nic) -> MtuToPeer:
    asked = {"nic": msgspec.to_builtins(nic), "peers": [peer.address]}
    passed = _answer(host, session, f"mtu {_json(asked)}", dict[str, int])
    return MtuToPeer(nic.name, peer.name, passed.get(peer.address, 0))


def _answer(host: Host, session: Session, question: str, kind: type[T]) -> T:
    """The answer to a question. Raises UnhealthyError: one of another form is a host's trouble, and not the user's."""
    session.write_line(question)
    try:
        answer = from_json(session.read_line(_TIMEOUT_S), object)
        if isinstance(answer, dict) and answer.keys() == {"error"}:
            raise UnhealthyError(f"{host.name}: cannot be checked: {one_line(answer['error'])}")
        with decoding():
            return msgspec.convert(answer, kind)
    except DecodingError as error:
        raise UnhealthyError(f"{host.name}: sent an unexpected answer: {error}; is its Python supported?") from None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
