"""The source ports by which queue pairs take planned paths, on a fabric that hashes the destination QP too. Pure.

There a source port leads another way for each queue pair that packets are for. The paths themselves are those of the
atlas; by which port one queue pair takes one of them is found by asking about ports in turn, for that queue pair. No
two flows of a pair of NICs get the same port, so that a port still stands for one path.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from c4bench.c4p.knowledge.atlas import Pair
from c4bench.c4p.knowledge.hash_inquiry import QpQuestion
from c4bench.c4p.knowledge.path_search import best_positions, fitting


class Wanted(NamedTuple):
    """A flow's path, as planned, and the queue pair at its end; `port` is the one that the flow has now, 0 for none."""

    flow: str
    pair: Pair
    qp: int
    hops: tuple[str, ...]
    port: int = 0


# The hops of a path with no choice: a switch and the NIC.
_ONE_SWITCH = 2
# Of as many paths as a switch has next hops at most, a port takes each with equal chance: 64 ports miss one of 16 with
# a probability of 0.016.
_PORTS_AT_MOST = 64


class QpPaths:
    """What is known of queue pairs' ports; `source_ports` are those that may be tried."""

    def __init__(self, source_ports: Sequence[int]) -> None:
        self._source_ports = source_ports
        # By pair and queue pair, the switches that answered for each port that was asked about, by position.
        self._answers: dict[tuple[Pair, int], dict[int, dict[int, str]]] = {}
        self._ports: dict[str, Wanted] = {}
        # How many questions there were about each queue pair: after silence another switch is asked.
        self._asked: Counter[tuple[Pair, int]] = Counter()

    def forget(self) -> None:
        """The fabric has changed: ports may lead elsewhere. Flows keep theirs until they have others."""
        self._answers.clear()
        self._ports = {flow: wanted._replace(hops=()) for flow, wanted in self._ports.items()}

    def release(self, flows: Iterable[str]) -> None:
        """Forget flows that have ended."""
        for flow in flows:
            self._ports.pop(flow, None)

    def port(self, flow: str) -> int:
        """The port that a flow has; 0 if none was found yet."""
        return self._ports[flow].port if flow in self._ports else 0

    def assign(self, wanted: Iterable[Wanted], paths: Mapping[Pair, Collection[tuple[str, ...]]]) -> list[Wanted]:
        """Give flows ports by which they take their paths; return the flows for which none is known yet."""
        missing = []
        for one in wanted:
            had = self._ports.get(one.flow)
            if had is not None and had.port and (had.hops, had.qp) == (one.hops, one.qp):
                continue
            port = next(iter(self._leading(one, paths[one.pair])), 0)
            if not port and len(one.hops) <= _ONE_SWITCH:
                port = self._free(one)
            if port:
                self._ports[one.flow] = one._replace(port=port)
            else:
                missing.append(one)
        return missing

    def _taken(self, wanted: Wanted) -> set[int]:
        """The ports of other flows of the pair."""
        return {one.port for one in self._ports.values() if one.pair == wanted.pair and one.flow != wanted.flow}

    def _free(self, wanted: Wanted) -> int:
        """Any port that no other flow has; 0 if there is none."""
        taken = self._taken(wanted)
        return next((port for port in self._in_turn(wanted) if port not in taken), 0)

    def _leading(self, wanted: Wanted, paths: Collection[tuple[str, ...]]) -> list[int]:
        """The ports that lead over the wanted path and that no other flow of the pair has."""
        taken, inner = self._taken(wanted), _switches(paths)
        answers = self._answers.get((wanted.pair, wanted.qp), {})
        return [
            port
            for port, found in answers.items()
            if port not in taken and found and fitting(inner, found) == [wanted.hops[:-1]]
        ]

    def questions(
        self,
        missing: Iterable[Wanted],
        paths: Mapping[Pair, Collection[tuple[str, ...]]],
        switch_of: Callable[[str], str] = str,
    ) -> list[QpQuestion]:
        """What to ask next, one question for each queue pair; none about one for which enough ports were tried.

        `switch_of` says which hops lead to one switch: of as good questions, more go where there are more switches.
        """
        asked: list[QpQuestion] = []
        for one in missing:
            busy = {(question.pair, question.source_port) for question in asked}
            ports = {port for pair, port in busy if pair == one.pair}
            question = self._question(one, _switches(paths[one.pair]), ports, switch_of)
            asked += [question] if question else []
        return asked

    def _question(
        self,
        wanted: Wanted,
        paths: Sequence[tuple[str, ...]],
        busy: Collection[int],
        switch_of: Callable[[str], str],
    ) -> QpQuestion | None:
        answers = self._answers.get((wanted.pair, wanted.qp), {})
        for port in self._in_turn(wanted)[:_PORTS_AT_MOST]:
            found = answers.get(port, {})
            fits = fitting(paths, found) if found else list(paths)
            if port in busy or (found and len(fits) <= 1):
                continue
            positions = best_positions(fits, found) or [len(fits[0]) // 2]
            # Those that tell as much apart share the questions: each switch has answers of its own.
            best = [place for place in positions if _told_apart(fits, place) == _told_apart(fits, positions[0])]
            places = [place for place in best for _ in {switch_of(path[place]) for path in fits}]
            self._asked[wanted.pair, wanted.qp] += 1
            turn = wanted.qp + self._asked[wanted.pair, wanted.qp]
            return QpQuestion(wanted.pair, port, places[turn % len(places)], wanted.qp)
        return None

    def _in_turn(self, wanted: Wanted) -> list[int]:
        """The ports in another order for each queue pair, but first the one that the flow has."""
        key = f"{wanted.pair} {wanted.qp}".encode()
        ports = sorted(self._source_ports, key=lambda port: crc32(b"%d " % port + key))
        had = self.port(wanted.flow) or wanted.port
        return [had, *(port for port in ports if port != had)] if had else ports

    def record(self, question: QpQuestion, address: str) -> None:
        """Note which switch answered a question."""
        of_qp = self._answers.setdefault((question.pair, question.qp), {})
        of_qp.setdefault(question.source_port, {})[question.position] = address


def _switches(paths: Collection[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The switches of paths, without their last hops, which are NICs."""
    return sorted({hops[:-1] for hops in paths})


def _told_apart(paths: Iterable[tuple[str, ...]], position: int) -> int:
    return len({path[position] for path in paths})
