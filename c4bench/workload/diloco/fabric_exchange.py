"""Turns on the fabric: who takes part, exchange among sites, one decision, outer step, catching up."""

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

import msgspec
import numpy as np

from c4bench.collective.communicator import Communicator
from c4bench.collective.errors import CollectiveError
from c4bench.collective.rendezvous import AbsentError
from c4bench.workload.diloco.plan import Turn
from c4bench.workload.diloco.quantisation import Bytes, Codec
from c4bench.workload.diloco.training import Outcome, OuterState, mean_of
from c4bench.workload.models.protocol import Vector

Result = TypeVar("Result")
# Connects this worker to its peers at two sites, of which one is its own, in their order; the number names a turn.
Connect = Callable[[tuple[int, int], int], Communicator]


class Peers:
    """Communicators of two, one for each other site. One that fails is closed, and made again at a later turn.

    Each pair of sites is on its own, so that a site that is cut off harms only what is exchanged with it.
    """

    def __init__(self, site: int, connect: Connect) -> None:
        self._site, self._connect = site, connect
        self._pairs: dict[int, Communicator] = {}

    def exchange(self, sites: Collection[int], turn: int, own: Bytes) -> dict[int, Bytes]:
        """Exchange bytes of equal length with the peers at these sites; by site what has arrived, and the own bytes."""
        others = sorted(set(sites) - {self._site})
        # All workers connect their pairs in one order, since each waits for the other end.
        for other in others:
            if other not in self._pairs:
                self._attempt(other, lambda other=other: self._join(other, turn))  # type: ignore[misc]
        connected = [other for other in others if other in self._pairs]
        with ThreadPoolExecutor(max(1, len(connected))) as pool:
            arrived = pool.map(lambda other: self._attempt(other, lambda: self._swap(other, own)), connected)
        received = dict(zip(connected, arrived, strict=True))
        return {self._site: own} | {site: data for site, data in received.items() if data is not None}

    def transfer(self, other: int, donor: int, vector: Vector) -> bool:
        """Copy the `donor`'s vector to the other of the two peers; returns whether that worked here."""
        pair = self._pairs.get(other)
        if pair is None:
            return False
        source = pair.rank if donor == self._site else 1 - pair.rank
        return bool(self._attempt(other, lambda: self._copied(pair, vector, source)))

    @staticmethod
    def _copied(pair: Communicator, vector: Vector, source: int) -> bool:
        pair.broadcast(vector, source)
        return True

    def _join(self, other: int, turn: int) -> None:
        sites = min(self._site, other), max(self._site, other)
        self._pairs[other] = self._connect(sites, turn)

    def _swap(self, other: int, own: Bytes) -> Bytes:
        pair = self._pairs[other]
        both = np.empty(2 * own.size, np.uint8)
        pair.all_gather(both, own)
        return both[own.size :] if pair.rank == 0 else both[: own.size]

    def _attempt(self, other: int, act: Callable[[], Result]) -> Result | None:
        """Do something with a pair; None if it fails."""
        try:
            return act()
        except CollectiveError:
            if pair := self._pairs.pop(other, None):
                pair.close()
            return None

    def close(self) -> None:
        """Close all connections."""
        for pair in self._pairs.values():
            pair.close()
        self._pairs.clear()


# `(key, sites, rank, payload)`: an all-gather of these sites' workers, as their number `rank`, whose answer, also that
# ranks are absent, is the same to all who ask.
Gather = Callable[[str, Sequence[int], int, bytes], list[bytes]]


class Attendance:
    """One worker's part in exchanges by the control plane; `workers` is how many each site has."""

    def __init__(self, gather: Gather, site: int, worker: int, workers: int) -> None:
        self._gather, self._site, self._worker, self._workers = gather, site, worker, workers

    def of(self, key: str, sites: Sequence[int], payload: bytes) -> dict[int, list[bytes]]:
        """Every worker's payload, by site, of those of the `sites` all of whose workers come in time.

        All that ask learn the same, also those that ask too late. Empty if this worker's site is left out. Use a key
        once.
        """
        present = tuple(sorted(sites))
        while self._site in present:
            rank = present.index(self._site) * self._workers + self._worker
            name = f"{key}/{'.'.join(map(str, present))}"
            try:
                payloads = self._gather(name, present, rank, payload)
            except AbsentError as error:
                absent = {present[rank // self._workers] for rank in error.ranks}
                present = tuple(site for site in present if site not in absent)
            else:
                firsts = range(0, len(payloads), self._workers)
                return {site: payloads[i : i + self._workers] for site, i in zip(present, firsts, strict=True)}
        return {}


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What one worker says of a turn: from which sites it has received, and how new its outer parameters are.

    `versions` has the number of the turn that each fragment's outer parameters come from, -1 for none.
    """

    received: frozenset[int]
    versions: tuple[int, ...]


@dataclass(frozen=True)
class CatchUp:
    """Outer parameters and velocities of `fragments` that site `donor` sends to `site`."""

    site: int
    donor: int
    fragments: tuple[int, ...]


@dataclass(frozen=True)
class Decision:
    """The `sites` whose contributions are summed, in order, none if the turn failed; and who catches up after it."""

    sites: tuple[int, ...]
    catch_ups: tuple[CatchUp, ...]


def decide(reports: Mapping[int, Sequence[Report]], fragment: int, quorum: int) -> Decision:
    """Decide a turn of `fragment` from the reports of each site's workers, by site.

    The contributions used are those of the largest group of sites, all of whose workers have received from each other
    and have the newest outer parameters of the fragment; of groups of equal size, the one of the lowest sites. A group
    smaller than the quorum does nothing: the turn failed. The quorum must be more than half of all sites, so that
    the newest parameters are those of the last turn that did not fail.
    """
    received = {site: frozenset.intersection(*(each.received for each in own)) for site, own in reports.items()}
    old = _outdated({site: own[0].versions for site, own in reports.items()})
    able = sorted(site for site in reports if fragment not in old[site])
    groups = (group for size in range(len(able), 0, -1) for group in combinations(able, size))
    largest = next((group for group in groups if _connected(group, received)), ())
    sites = largest if len(largest) >= quorum else ()
    wanted = {site: old[site] | ({fragment} if sites and site not in sites else set()) for site in sorted(reports)}
    catch_ups = [
        CatchUp(site, donor, tuple(sorted(fragments)))
        for site, fragments in wanted.items()
        for donor in _donors(site, fragments, sites or sorted(reports), old, received)
    ]
    return Decision(sites, tuple(catch_ups))


def _donors(
    site: int,
    fragments: Collection[int],
    candidates: Sequence[int],
    old: Mapping[int, Collection[int]],
    received: Mapping[int, Collection[int]],
) -> list[int]:
    """The lowest site that has these fragments and can send them, if there are any to send."""
    able = (each for each in candidates if each != site and not set(old[each]) & set(fragments))
    return [each for each in able if fragments and _connected((each, site), received)][:1]


def _outdated(versions: Mapping[int, Sequence[int]]) -> dict[int, set[int]]:
    """The fragments of which each site has older parameters than another."""
    newest = [max(column) for column in zip(*versions.values(), strict=True)]
    return {
        site: {part for part, version in enumerate(own) if version < newest[part]} for site, own in versions.items()
    }


def _connected(sites: Collection[int], received: Mapping[int, Collection[int]]) -> bool:
    return all(there in received[here] for here in sites for there in sites if here != there)


# In turns whose number is a multiple of this, sites that were absent are expected again. Others do not wait for them.
EXPECTED_AGAIN = 4


class Held(msgspec.Struct, frozen=True):
    """A turn as one worker saw it: whose contributions were used, none if it failed; the outer part's SHA-256 then.

    `present` is false if the site came too late. Times are on the host's clock.
    """

    number: int
    fragment: int
    sites: tuple[int, ...]
    adopted: tuple[int, ...]
    present: bool
    began_s: float
    ended_s: float
    digest: str


@dataclass(frozen=True)
class Place:
    """Which worker of which site this is; all sites have `workers`."""

    site: int
    worker: int
    sites: int
    workers: int


class FabricExchange:
    """Exchanges outer gradients over the fabric in a thread of its own (see `training.Exchange`).

    Worker i of a site exchanges shard i of the coded outer gradient with worker i of each other site. All workers then
    report by the control plane what they have received, and so decide alike whose contributions count; the shards of
    the mean are gathered within the site over `within`. The outer state belongs to the thread while a turn is under
    way. Raises CollectiveError from `receive` when the site itself is broken.
    """

    def __init__(
        self,
        place: Place,
        outer: OuterState,
        codec: Codec,
        quorum: int,
        attendance: Attendance,
        peers: Peers,
        within: Communicator,
    ) -> None:
        self._place, self._outer, self._codec, self._quorum = place, outer, codec, quorum
        self._attendance, self._peers, self._within = attendance, peers, within
        self._everyone = tuple(range(place.sites))
        self._expected = self._everyone
        self._thread = ThreadPoolExecutor(1)
        self._under_way: Future[Outcome] | None = None
        self.held: list[Held] = []

    def send(self, turn: Turn, gradient: Vector) -> None:
        """See `training.Exchange`."""
        self._under_way = self._thread.submit(self._hold, turn, gradient)

    def receive(self) -> Outcome:
        """See `training.Exchange`."""
        assert self._under_way
        return self._under_way.result()

    def close(self) -> None:
        """Wait for the thread, and close the connections to other sites."""
        self._thread.shutdown()
        self._peers.close()

    def _hold(self, turn: Turn, gradient: Vector) -> Outcome:
        began_s = time.time()
        decision = self._decide(turn, gradient)
        if decision is None:
            # The next turn in which this site is expected.
            following = turn.number + EXPECTED_AGAIN - turn.number % EXPECTED_AGAIN
            self._note(turn, Decision((), ()), (), began_s, present=False)
            return Outcome(False, (), following)
        stepped = self._place.site in decision.sites
        adopted = [number for catch_up in decision.catch_ups for number in self._catch_up(catch_up)]
        self._note(turn, decision, tuple(adopted), began_s, present=True)
        return Outcome(stepped, tuple(adopted), turn.number + 1)

    def _decide(self, turn: Turn, gradient: Vector) -> Decision | None:
        """Exchange shards and take the outer step that is decided on; None if this site is too late."""
        expected = self._everyone if turn.number % EXPECTED_AGAIN == 0 else self._expected
        present = self._attendance.of(f"open/{turn.number}", expected, b"")
        if not present:
            return None
        shards = _shards(gradient, self._place.workers)
        received = self._peers.exchange(tuple(present), turn.number, self._codec.encode(shards[self._place.worker]))
        report = Report(frozenset(received), tuple(self._outer.versions))
        said = self._attendance.of(f"decide/{turn.number}", tuple(present), msgspec.msgpack.encode(report))
        if not said:
            return None
        self._expected = tuple(said)
        reports = {site: [msgspec.msgpack.decode(each, type=Report) for each in own] for site, own in said.items()}
        decision = decide(reports, turn.fragment, self._quorum)
        if self._place.site in decision.sites:
            mean = np.empty_like(shards)
            shard = mean_of([received[site] for site in decision.sites], self._codec, shards.shape[1])
            self._within.all_gather(mean, shard)
            self._outer.step(turn.fragment, mean.reshape(-1)[: gradient.size], turn.number)
        return decision

    def _catch_up(self, catch_up: CatchUp) -> tuple[int, ...]:
        """Take part in bringing a site up to date; the fragments that this site has taken over."""
        own = self._place.site
        if own not in (catch_up.site, catch_up.donor):
            return ()
        if own == catch_up.donor:
            state = _shards(self._outer.copy(catch_up.fragments), self._place.workers)
            self._peers.transfer(catch_up.site, own, state[self._place.worker])
            return ()
        items = self._outer.copied_items(catch_up.fragments)
        state = _shards(np.zeros(items, np.float32), self._place.workers)
        shard = state[self._place.worker].copy()
        arrived = np.array([self._peers.transfer(catch_up.donor, catch_up.donor, shard)], np.int32)
        self._within.all_reduce(arrived, "min")
        if not arrived[0]:
            return ()
        self._within.all_gather(state, shard)
        self._outer.restore(catch_up.fragments, state.reshape(-1)[:items])
        return catch_up.fragments

    def _note(self, turn: Turn, decision: Decision, adopted: tuple[int, ...], began_s: float, *, present: bool) -> None:
        digest = hashlib.sha256(self._outer.part(turn.fragment).tobytes()).hexdigest()
        numbers = turn.number, turn.fragment
        self.held.append(Held(*numbers, decision.sites, adopted, present, began_s, time.time(), digest))


def _shards(vector: Vector, count: int) -> Vector:
    """The vector cut into so many rows of equal length, filled up with zeros."""
    rows = np.zeros((count, -(-vector.size // count)), np.float32)
    rows.reshape(-1)[: vector.size] = vector
    return rows
