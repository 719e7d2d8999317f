"""What logs show: who ended first, which NICs no longer answer, and in which operations ranks gave up waiting.

A process that ended by itself, or a NIC that several others cannot reach, explains that others wait; those that wait
explain nothing. What failed connections have in common is found as C4D finds it (`c4d/hang/failed_connections.py`).
Waits in different groups are not compared: their numbers have nothing to do with each other. Within a group, a rank
that has not finished an operation which the others have is behind. A rank without a line is where to look first, and
no more: its log may be missing.
"""

from collections.abc import Iterable, Iterator

from c4bench.attribution.weigh import path_component
from c4bench.c4d.diagnosis import Finding, rank_component
from c4bench.c4d.hang.failed_connections import Pair, common
from c4bench.evidence.judging.hangs import RankFinding
from c4bench.evidence.judging.join import JobEvidence, grouped
from c4bench.evidence.lines import moment_s
from c4bench.evidence.nccl_log import FLUSHED, STATUSES, TIMED_OUT, UNANSWERED
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.evidence import CommStart, FailedConnection, LogEvent, TimedOut

_SHOWN = 8
_NAMED = 4  # as many processes that ended by themselves are named one by one
_SURE, _PERHAPS, _CAUGHT = 0.8, 0.7, 0.5
# Errors of one cause reach the logs of several ranks within so long.
_TOGETHER_S = 1.0
# Of these the numbers count something else than collectives.
_UNCOUNTED = frozenset({"send", "recv", "coalesced"})
_FIRST = "the first to look at, though silence proves nothing"
_ENDS = ("exit", "exception", "host")
# After these a rank gives up, and its exit code follows from that.
_WAITED = ("connection", "heartbeat", "nccl", "ucx")


class LogCase:
    """What the logs of a job tell together."""

    def __init__(self, job: JobEvidence) -> None:
        self._job = job
        logs = job.reading.logs
        self._events = _in_time(event for log in logs for event in log.events)
        self._failed = [one for log in logs for one in log.failed]
        self._names = {address: name for log in logs for address, name in log.names.items()}
        self._nics = {gid: nic for log in logs for gid, nic in log.nics.items()}
        self._carried = {nic: (one, other) for log in reversed(logs) for nic, one, other in log.carried}
        self._starts = [start for log in logs for start in log.starts]
        self._spoke_on = {rank: host for log in logs for rank, host in log.spoke_on.items()}
        waits = {(one.rank, one.member, one.comm, one.seq): one for one in job.reading.timeouts}
        self._timeouts = tuple(waits.values())
        self._progress = grouped((one for log in logs for one in log.progress), lambda one: one.comm)
        self._closed: dict[str, set[str]] = {}
        for peer, by in (item for log in logs for item in log.closed.items()):
            self._closed.setdefault(self._names.get(peer, peer), set()).update(by)

    def judge(self) -> list[RankFinding]:
        """Processes that ended by themselves and NICs that failed; else who is behind, or where ranks wait."""
        ended = self._ended()
        ports = self._ports()
        explained = {part.name for found in ports for part in found.finding.suspects}
        found = [*ended, *ports, *self._connections(explained, {host for one in ended for host in one.hosts})]
        found = found or [*self._behind()] or self._not_at_barrier() or self._closers()
        return found or [*self._unlike()] or [*self._waits(), *self._unfinished_starts()]

    def timeline(self) -> tuple[LogEvent, ...]:
        """The first error of each rank, or of each process or host where the rank is not known, in order of time."""
        first: dict[object, LogEvent] = {}
        for event in self._events:
            key = event.rank if event.rank >= 0 else (event.source, event.host, event.pid)
            first.setdefault(key, event)
        return tuple(first.values())

    def _ended(self) -> list[RankFinding]:
        """Those that ended by themselves: one by one where they are few, else the job, as all do the same."""
        waited = {one.rank for one in self._timeouts}
        waited |= {event.rank for event in self._events if event.what in _WAITED or event.consequence}
        own = [event for event in self._events if event.what in _ENDS and not event.consequence
               and (event.rank >= 0 or event.host) and not (event.status > 0 and event.rank in waited)]  # fmt: skip
        roots = [event for event in own if event.root]
        first = list({(event.rank, event.host, event.pid if event.rank < 0 else -1): event
                      for event in reversed(_earliest(roots or own))}.values())[::-1]  # fmt: skip
        ranks = {event.rank for event in first if event.rank >= 0}
        hosts = {event.host for event in first}
        if len(first) > 1 and len(hosts) == 1 and hosts != {""}:
            return [self._ended_host(first, tuple(sorted(ranks)))]
        if len(first) > _NAMED:
            shown = ", ".join(map(str, sorted(ranks)[:_SHOWN]))
            words = [f"{len(first)} processes ended by themselves (ranks {shown} ...): a bug of the program, or of its "
                     "input, is likelier than that many faults", _words(first[0])]  # fmt: skip
            return [self._found(Cause.PROCESS_ENDED, Component("job", self._job.name), 0.5, words,
                                "an earlier error of one of them")]  # fmt: skip
        return [self._ended_one(event) for event in first]

    def _ended_host(self, first: list[LogEvent], ranks: tuple[int, ...]) -> RankFinding:
        """Several processes of one host that ended together, and none elsewhere: the host, rather than any of them."""
        host = first[0].host
        words = [_words(first[0]), f"{len(first)} processes on {host} ended by themselves, and none elsewhere"]
        by_signal = all(event.status < 0 for event in first)
        found = self._found(Cause.PROCESS_ENDED, Component("host", host), _SURE if by_signal else _CAUGHT, words,
                            f"an earlier error of a process that is not on {host}")  # fmt: skip
        return found._replace(culprits=ranks, sure=by_signal, hosts=(host,))

    def _ended_one(self, event: LogEvent) -> RankFinding:
        host = event.host or self._spoke_on.get(event.rank, "")
        certain = event.what == "host" or event.status < 0
        words = [_words(event)]
        if self._timeouts:
            words.append(f"{len(self._timeouts)} ranks that timed out waited: that follows")
        part = Component("host", host or event.source)
        if event.rank >= 0:
            part = rank_component(self._job.name, event.rank)
        cause = Cause.HOST_SILENT if event.what == "host" else Cause.PROCESS_ENDED
        refuted_by = f"{part} running on, or an earlier error of another"
        # A program may catch an exception and go on; one that ends the process shows as its exit.
        ended = certain or any(one.what == "exit" and one.rank == event.rank for one in self._events)
        confidence = _SURE if certain else _PERHAPS if ended else _CAUGHT
        found = self._found(cause, part, confidence, words, refuted_by)
        ranks = (event.rank,) if event.rank >= 0 else ()
        return found._replace(culprits=ranks, sure=certain, hosts=(host,) if host else ())

    def _ports(self) -> list[RankFinding]:
        """NICs that say themselves that their port or device failed."""
        found = []
        events = [event for event in self._events if event.what == "port"]
        for nic, ones in sorted(grouped(events, lambda one: f"{one.host}/{one.text.partition(':')[0]}").items()):
            words = [_words(ones[0]), "the NIC, its cable or the switch's port: the log does not tell these apart"]
            one = self._found(Cause.PORT_DOWN, Component("nic", nic), _SURE, words, f"data by {nic} after that")
            found.append(one._replace(hosts=(ones[0].host,)))
        return found

    def _connections(self, explained: set[str], gone: set[str]) -> list[RankFinding]:
        """What connections without an answer have in common, but for those that something else explains."""
        pairs: dict[Pair, list[FailedConnection]] = {}
        for one in self._failed:
            mine, theirs = self._ends(one)
            known = mine in explained or theirs in explained or {_host(mine), _host(theirs)} & gone
            if one.status in {UNANSWERED, TIMED_OUT} and mine and theirs and not known:
                first, second = sorted((mine, theirs))
                pairs.setdefault((first, second), []).append(one)
        cells = {pair: (pair, pair[::-1]) for pair in pairs}
        found = [self._connection(part, others, pairs) for part, others in common(cells, (), {})]
        hosts = {host for one in found for host in one.hosts or ("",)}
        if len(found) == 1 or len(hosts) != 1 or "" in hosts:
            return found
        return [self._of_one_host(hosts.pop(), found)]

    def _of_one_host(self, host: str, found: list[RankFinding]) -> RankFinding:
        """Several NICs of one host without an answer, and none elsewhere: the host, rather than each of them."""
        names = ", ".join(one.finding.component.name for one in found[:_SHOWN])
        words = [f"{len(found)} NICs of {host} give no answer, and none elsewhere: {names}", *found[0].finding.evidence]
        one = self._found(Cause.CONNECTION_LOST, Component("host", host), _PERHAPS, words, f"data that crosses {host}")
        return one._replace(hosts=(host,))

    def _ends(self, one: FailedConnection) -> tuple[str, str]:
        """The NICs at both ends, as far as they are known; the second is empty if nothing is known of it."""
        peer = self._names.get(one.peer, one.peer)
        theirs = f"{peer}/{one.peer_gid or '?'}" if peer and peer != one.peer_gid else peer
        theirs = self._nics.get(one.peer_gid) or theirs
        mine = f"{one.host}/{one.nic or '?'}" if one.host else self._nics.get(one.gid, one.gid)
        return mine, theirs

    def _connection(
        self, part: Component, others: tuple[Component, ...], pairs: dict[Pair, list[FailedConnection]]
    ) -> RankFinding:
        suspects = [set(one.name.split(">")) for one in (part, *others)]
        mine = {pair: ones for pair, ones in pairs.items() if any(ends <= set(pair) for ends in suspects)}
        ends = {nic for pair in mine for nic in pair}
        words = []
        for ones in [*mine.values()][:_NAMED]:
            times = sum(one.times for one in ones)
            near, far = self._ends(ones[0])
            gid = f" ({ones[0].peer_gid})" if ones[0].peer_gid and ones[0].peer_gid not in far else ""
            vendor = f", vendor error {ones[0].vendor}" if ones[0].vendor >= 0 else ""
            why = "retries exceeded" if ones[0].status == UNANSWERED else STATUSES[TIMED_OUT]
            how = f"{times} {'time' if times == 1 else 'times'}: {why} (status {ones[0].status}){vendor}"
            words.append(f"{near} had no answer from {far}{gid} {how}")
        if len(mine) == 1:
            words.append("either NIC, its host, or the path between them: one connection does not tell these apart")
            (pair,) = mine
            part, others = path_component(pair), (Component("nic", pair[0]), Component("nic", pair[1]))
        elif part.kind == "path":
            words.append(f"these {len(mine)} connections share no NIC, so that what they cross between is likelier")
        else:
            words.append(
                f"all {len(mine)} share {part.name}, whoever reports it; its cable or switch port may be it too"
            )
        flushed = sum(one.times for one in self._failed if one.status == FLUSHED)
        if flushed:
            words.append(f"flushed requests (status {FLUSHED}) follow from that: {flushed}")
        carried = ((nic, *ranks) for nic, ranks in self._carried.items() if nic in ends)
        words += [f"rank {one} sends to rank {other} by {nic}" for nic, one, other in carried]
        if part.kind == "nic" and part.name.endswith("/?"):
            part = Component("host", _host(part.name))
            words.append("no line names the NIC")
        refuted_by = f"data that crosses {part}"
        found = self._found(Cause.CONNECTION_LOST, part, _SURE / (1 + len(others)), words, refuted_by, others)
        return found._replace(hosts=(_host(part.name),) if part.kind in {"nic", "host"} else ())

    def _behind(self) -> Iterator[RankFinding]:
        """Ranks that have not finished an operation which others of their group have, and gave up in."""
        known = (
            one for one in self._timeouts if one.comm and min(one.seq, one.rank) >= 0 and one.kind not in _UNCOUNTED
        )
        for comm, waits in sorted(grouped(known, lambda one: one.comm).items()):
            least = min(one.seq for one in waits)
            inside = {one.rank for one in waits}
            fewer = [one for one in self._progress.get(comm, ()) if one.last_seq < least and one.rank not in inside]
            if fewer:
                yield self._not_come(waits, sorted({one.rank for one in fewer}), max(one.last_seq for one in fewer))
                continue
            late = [one for one in waits if one.seq == least]
            ahead = [one for one in waits if one.completed >= least]
            if not ahead:
                continue
            ranks = tuple(sorted(one.rank for one in late))
            words = [
                _wait(late),
                _wait(ahead),
                f"behind, or hanging in it: {_ranks(ranks)}; the others have finished it",
            ]
            parts = [rank_component(self._job.name, rank) for rank in ranks]
            part, others = (parts[0], ()) if len(parts) == 1 else (Component("job", self._job.name), tuple(parts))
            found = self._found(Cause.STUCK_INSIDE, part, _PERHAPS / len(parts), [*words, *self._unheard()],
                                f"{_ranks(ranks)} finishing the operation", others)  # fmt: skip
            waiting = tuple(sorted({one.rank for one in self._timeouts} - set(ranks)))
            hosts = tuple(sorted({host for rank in ranks if (host := self._spoke_on.get(rank))}))
            yield found._replace(culprits=ranks, waiting=waiting, hosts=hosts)

    def _unlike(self) -> Iterator[RankFinding]:
        """Ranks that gave up in one operation of a group, which they call differently; the fewer are to blame."""
        known = (one for one in self._timeouts if one.comm and one.seq >= 0 and one.kind not in _UNCOUNTED)
        for waits in grouped(known, lambda one: (one.comm, one.seq)).values():
            sides = sorted(grouped(waits, lambda one: one.kind).values(), key=len)
            if len(sides) < 2:
                continue
            fewer = sides[0] if len(sides[0]) < len(sides[1]) else waits
            ranks = tuple(sorted({one.rank for one in fewer if one.rank >= 0}))
            words = [_wait(side) for side in sides]
            found = self._found(Cause.COLLECTIVE_TYPE_MISMATCH, Component("job", self._job.name), _SURE, words,
                                "the same program ending well on the same ranks")  # fmt: skip
            yield found._replace(culprits=ranks, sure=fewer is not waits)

    def _not_come(self, waits: list[TimedOut], ranks: list[int], last: int) -> RankFinding:
        """Ranks that had not called what others of their group gave up in, as they said themselves."""
        return self._absent(ranks, [_wait(waits), f"{_ranks(ranks)} had called up to #{last} only", *self._unheard()])

    def _not_at_barrier(self) -> list[RankFinding]:
        """Ranks that had not come to a monitored barrier, as its root says."""
        missed = [event for event in self._events if event.what == "barrier"]
        return [self._absent(sorted({event.rank for event in missed}), [_words(missed[0])])] if missed else []

    def _absent(self, ranks: list[int], words: list[str]) -> RankFinding:
        """Ranks that have not called what others wait in."""
        parts = [rank_component(self._job.name, rank) for rank in ranks]
        part, others = (parts[0], ()) if len(parts) == 1 else (Component("job", self._job.name), tuple(parts))
        found = self._found(Cause.NOT_ENTERED, part, _SURE / len(parts), words, f"{_ranks(ranks)} calling it", others)
        hosts = tuple(sorted({host for rank in ranks if (host := self._spoke_on.get(rank))}))
        waiting = tuple(sorted({one.rank for one in self._timeouts if one.rank >= 0} - set(ranks)))
        return found._replace(culprits=tuple(ranks), sure=len(ranks) == 1, waiting=waiting, hosts=hosts)

    def _closers(self) -> list[RankFinding]:
        """The host whose processes closed their connections, if all that lost one name it and it names nobody."""
        by = {peer: reporters for peer, reporters in self._closed.items() if len(reporters) > 1}
        if len(self._closed) != 1 or not by:
            return []
        (peer, reporters), *_ = by.items()
        if any(one.partition(":")[0] == peer for one in reporters):
            return []
        words = [
            f"{len(reporters)} processes lost their connection to {peer}, and to no other: it closed them, or ended"
        ]
        found = self._found(
            Cause.PROCESS_ENDED, Component("host", peer), _CAUGHT, words, f"processes on {peer} running on"
        )
        return [found._replace(hosts=(peer,))]

    def _waits(self) -> Iterator[RankFinding]:
        """Operations in which ranks gave up, and that nobody is known to be to blame."""
        places = grouped(self._timeouts, lambda one: (one.comm, one.group, one.seq, one.kind))
        if not places:
            return
        words = [_wait(waits) for waits in [*places.values()][:_SHOWN]]
        if len(places) > _SHOWN:
            words.append(f"and so in {len(places) - _SHOWN} more operations")
        comms = {one.comm for one in self._timeouts}
        if len(places) > 1:
            known = "these are different groups" if "" not in comms else "not all of their groups are known"
            words.append(f"{known}, so that their numbers are not compared")
        words += self._unheard()
        words.append("which rank they waited for is not in the log: nobody is known to be to blame")
        job, ranks = self._job, tuple(sorted({one.rank for one in self._timeouts if one.rank >= 0}))
        found = self._found(Cause.STUCK_INSIDE, Component("job", job.name), _SURE / max(job.ranks, 1), words,
                            "these operations ending on all ranks")  # fmt: skip
        yield found._replace(waiting=ranks)

    def _unfinished_starts(self) -> Iterator[RankFinding]:
        """Communicators that some ranks have begun to make and none has completed."""
        for start in _joined(self._starts):
            if not start.comm or start.completed or self._timeouts or len(start.begun) == start.size:
                continue
            lacking = sorted(set(range(start.size)) - set(start.begun))
            begun = f"{len(start.begun)} of {start.size} ranks have begun to make it, and none has completed it"
            words = [f"communicator {start.comm}: {begun}", f"no line of its ranks {_some(lacking)}: {_FIRST}"]
            yield self._found(Cause.NOT_ENTERED, Component("job", self._job.name), _SURE / start.size, words,
                              f"a line of ranks {_some(lacking)}")  # fmt: skip

    def _unheard(self) -> list[str]:
        """Which ranks have no line, if most have one; of those within the others where the job's size is not stated."""
        job = self._job
        size = job.ranks if job.size_stated else 1 + max(self._spoke_on, default=-1)
        silent = [rank for rank in range(size) if rank not in self._spoke_on]
        if not silent or len(silent) > len(self._spoke_on):
            return []
        hosts = sorted({host for rank in silent if (host := self._between(rank))})
        where = f", on {_some(hosts)} by the order of ranks" if hosts and len(hosts) <= _NAMED else ""
        return [f"no line of {_ranks(silent)}{where}: {_FIRST}"]

    def _between(self, rank: int) -> str:
        """The host of a rank, if the next ones before and after it are on the same; else empty."""
        before = max((one for one in self._spoke_on if one < rank), default=-1)
        after = min((one for one in self._spoke_on if one > rank), default=-1)
        hosts = {self._spoke_on.get(before, ""), self._spoke_on.get(after, "")}
        return hosts.pop() if len(hosts) == 1 else ""

    def _found(
        self, cause: Cause, part: Component, confidence: float, words: Iterable[str], refuted_by: str,
        others: tuple[Component, ...] = (),
    ) -> RankFinding:  # fmt: skip
        network = cause in {Cause.CONNECTION_LOST, Cause.PORT_DOWN, Cause.STUCK_INSIDE}
        syndrome = Syndrome.COMMUNICATION_HANG if network else Syndrome.NON_COMMUNICATION_HANG
        figures = {"waiting_ranks": float(len(self._timeouts))}
        finding = Finding(syndrome, cause, part, 0.0, confidence, tuple(words), refuted_by, figures, others)
        return RankFinding(finding, (), sure=False)


def _in_time(events: Iterable[LogEvent]) -> list[LogEvent]:
    """The events by their times; those without keep their place after the one before them in their file."""
    at_s: dict[str, float] = {}
    placed = []
    for event in events:
        moment = moment_s(event.at)
        at_s[event.source] = moment if moment >= 0 else at_s.get(event.source, -1.0)
        placed.append((at_s[event.source], event.source, event.line, event))
    return [event for *_, event in sorted(placed, key=lambda one: one[:3])]


def _earliest(events: list[LogEvent]) -> list[LogEvent]:
    """The events that came first, and what came with them; all if a time is not known."""
    moments_s = [moment_s(event.at) for event in events]
    if not events or min(moments_s) < 0:
        return events
    return [event for event, at_s in zip(events, moments_s, strict=True) if at_s <= min(moments_s) + _TOGETHER_S]


def _joined(starts: Iterable[CommStart]) -> Iterator[CommStart]:
    """Each communicator once, with the ranks that any file has."""
    for (comm, size), ones in grouped(starts, lambda one: (one.comm, one.size)).items():
        begun = {rank for one in ones for rank in one.begun}
        completed = {rank for one in ones for rank in one.completed}
        yield CommStart(comm, size, tuple(sorted(begun)), tuple(sorted(completed)))


def _wait(waits: list[TimedOut]) -> str:
    """Who gave up waiting in which operation, in words."""
    first = min(waits, key=lambda one: one.rank)
    ranks = sorted(one.rank for one in waits if one.rank >= 0)
    members = sorted(one.member for one in waits if one.rank < 0 <= one.member)
    who = [_ranks(ranks)] if ranks else [] if members else ["a rank that is not known"]
    who += [f"ranks {_some(members)} of a group"] if members else []
    number, group = (f" #{first.seq}" if first.seq >= 0 else ""), (f" of {first.group}" if first.group else "")
    where = f"{first.kind or 'an operation'}{number}{group}"
    words = f"{first.source}: {' and '.join(who)} timed out after {first.after_s:g} s in {where}"
    if first.completed >= 0:
        words += f"; rank {first.rank} had completed #{first.completed} and called up to #{first.enqueued}"
    return words


def _words(event: LogEvent) -> str:
    """An event in words, with its place."""
    who = f"rank {event.rank}" if event.rank >= 0 else "a process"
    where = (f" on {event.host}" if event.host else "") + (f" at {event.at}" if event.at else "")
    return f"{event.source}, line {event.line}: {who}{where}: {event.text}"


def _host(nic: str) -> str:
    return nic.partition("/")[0]


def _ranks(ranks: Iterable[int]) -> str:
    shown = list(ranks)
    return f"rank {shown[0]}" if len(shown) == 1 else f"ranks {_some(shown)}"


def _some(parts: Iterable[object]) -> str:
    shown = list(parts)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(map(str, shown[:_SHOWN])) + more
