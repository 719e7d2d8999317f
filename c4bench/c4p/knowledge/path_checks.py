"""Which paths of live pairs to check when, with as few answers of switches as that takes. Pure.

A probe that expires at the last switch of a path shows that the path is as it was. Checks go over all known paths of a
pair, so that a lost link is noticed also where no planned flow crosses it. Only if another switch answers, or none, all
of the path is traced. A switch is asked only when it can answer, so that silence means a lost link. A switch
may have sent other ICMP errors, of which nobody knows, so a NIC that met silence takes its answers for spent: its next
question is one that the switch can answer, and silence then confirms the loss.

How many answers to probes a switch has left for a NIC. Pure. Linux answers a prober six times at once, then once a
second (`icmp_ratelimit` in Documentation/networking/ip-sysctl). Network operating systems based on it, such as SONiC
and Cumulus, do the same. Where a switch was found to answer less, its limits count. ICMP errors about other packets of
the prober, such as "host unreachable", count too, and nobody here sees them.
"""

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

import msgspec

from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.atlas import Pair, Probe, Question
from c4bench.c4p.knowledge.link_state import LinkHealth
from c4bench.c4p.knowledge.path_knowledge import PROBES, PathKnowledge
from c4bench.c4p.policy import PathPolicy


class AnswerLimits(NamedTuple):
    """How many answers a switch gives a NIC at once, and then each second; Linux's limits."""

    burst: float = 6.0
    per_s: float = 1.0


class _Bucket(msgspec.Struct):
    """A token bucket: the answers left at `at_s`, and those left `surely`, whatever silence meant."""

    left: float
    surely: float
    at_s: float

    def refill(self, now_s: float, limits: AnswerLimits) -> None:
        """Add the answers of the time since `at_s`."""
        added = max(now_s - self.at_s, 0.0) * limits.per_s
        self.left, self.surely = min(self.left + added, limits.burst), min(self.surely + added, limits.burst)
        self.at_s = now_s

    def merge(self, other: "_Bucket", limits: AnswerLimits) -> None:
        """Count what was spent of another bucket too, that was refilled at the same time."""
        self.left = max(self.left + other.left - limits.burst, 0.0)
        self.surely = max(self.surely + other.surely - limits.burst, 0.0)


class AnswerBudget:
    """Token buckets by NIC and switch. Times are seconds on the caller's clock.

    Buckets are full at first, unless somebody else may have spent them until `spent_until_s`. `limits` are those of all
    switches.
    """

    def __init__(self) -> None:
        self.limits = AnswerLimits()
        self.spent_until_s = float("-inf")
        self._switches: DisjointSets[str] = DisjointSets()
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def regroup(self, switches: DisjointSets[str], now_s: float) -> None:
        """Count hops of one set as one switch from now on, with the answers that any of them has given."""
        self._switches = switches
        buckets, self._buckets = self._buckets, {}
        for (nic, hop), bucket in buckets.items():
            bucket.refill(now_s, self.limits)
            merged = self._buckets.setdefault((nic, switches.root(hop)), bucket)
            if merged is not bucket:
                merged.merge(bucket, self.limits)

    def left(self, nic: str, hop: str, now_s: float) -> float:
        """The answers that the switch of this hop has left for a NIC, if silence was not for want of answers."""
        return self._bucket(nic, hop, now_s).left

    def surely_left(self, nic: str, hop: str, now_s: float) -> float:
        """The answers that the switch of this hop has left for a NIC, even if it had none when it was in doubt."""
        return self._bucket(nic, hop, now_s).surely

    def spend(self, nic: str, hop: str, now_s: float) -> None:
        """Count one answer."""
        bucket = self._bucket(nic, hop, now_s)
        bucket.left, bucket.surely = max(bucket.left - 1, 0.0), max(bucket.surely - 1, 0.0)

    def exhaust(self, nic: str, hop: str, now_s: float) -> None:
        """Count every answer as given: the switch was silent, perhaps because of ICMP errors to others' packets."""
        bucket = self._bucket(nic, hop, now_s)
        bucket.left = bucket.surely = 0.0

    def doubt(self, nic: str, hop: str, now_s: float) -> None:
        """Note that a switch was silent which may be this one: it may have no answers left."""
        self._bucket(nic, hop, now_s).surely = 0.0

    def _bucket(self, nic: str, hop: str, now_s: float) -> _Bucket:
        left = min((now_s - self.spent_until_s) * self.limits.per_s, self.limits.burst)
        bucket = self._buckets.setdefault((nic, self._switches.root(hop)), _Bucket(left, left, now_s))
        bucket.refill(now_s, self.limits)
        return bucket


# Answers that routine checks leave for urgent ones, and both for a search, which must see that a link is back.
_RESERVE, _LEAST_RESERVE = 3.0, 1.0


class CheckResults(NamedTuple):
    """What checks have shown: whether paths have `changed`, and the hops that were `crossed`.

    `suspects` are the source ports of paths without an answer, by pair: to find the lost link, trace them as a whole.
    `confirmed` are missing links that were silent again.
    """

    changed: bool
    suspects: dict[Pair, tuple[int, ...]]
    crossed: frozenset[str]
    confirmed: frozenset[str] = frozenset()


class _KnownPath(NamedTuple):
    """The links of a path of a pair of NICs, up to its last switch."""

    pair: Pair
    links: tuple[str, ...]


class PathChecks:
    """When paths were checked last, and whether the next check is urgent. Times are seconds on the caller's clock."""

    def __init__(self, policy: PathPolicy, knowledge: PathKnowledge, health: LinkHealth) -> None:
        self.policy = policy
        self._knowledge, self._health = knowledge, health
        self._budget = AnswerBudget()
        self._checked_s = -inf
        self._urgent = False
        self._slow: set[Probe] = set()
        self._round = 0
        # The known paths of live pairs, and of which state of knowledge they are.
        self._paths: dict[str, dict[_KnownPath, list[int]]] = {}
        self._paths_of: tuple[int, frozenset[Pair]] | None = None
        # NICs, and the missing hops that were silent to them.
        self._refused: set[tuple[str, str]] = set()

    def request(self, slow: Collection[Probe]) -> None:
        """Make the next check urgent, first that of paths which are `slow`."""
        self._urgent = True
        self._slow.update(slow)

    def note_learnt(self, now_s: float) -> None:
        """Note that paths were learnt just now."""
        self._checked_s, self._urgent = now_s, False

    def set_limits(self, limits: AnswerLimits) -> None:
        """Count with these limits of switches from now on."""
        self._budget.limits = limits

    def note_restart(self, now_s: float) -> None:
        """Note that another master may have asked the switches until now."""
        self._budget.spent_until_s = now_s

    def note_switches(self, now_s: float) -> None:
        """Note that it is known better which hops belong to one switch."""
        self._budget.regroup(self._knowledge.switches(), now_s)

    def note_answers(self, nic: str, hops: Iterable[str], now_s: float, silent: Iterable[Question] = ()) -> None:
        """Count answers that switches gave to other probes of this NIC, and note where they were `silent`.

        A switch that was silent to a search may have no answers left, or its answer was lost while routes changed.
        Which one it was is not known, so none that may be at these positions is checked before it can answer again.
        """
        for hop in hops:
            self._budget.spend(nic, hop, now_s)
        for pair, _, position in silent:
            known = [entry.hops[:-1] for entry in self._knowledge.entries(pair).values()]
            for hop in {hops[position] for hops in known if position < len(hops)}:
                self._budget.doubt(nic, hop, now_s)

    def note_refused(self, refused: Iterable[tuple[str, str]], now_s: float) -> None:
        """Note NICs, and the hops that were silent to them."""
        for nic, hop in refused:
            self._refused.add((nic, hop))
            self._budget.exhaust(nic, hop, now_s)

    def can_answer(self, now_s: float, nic: str, hop: str) -> bool:
        """Whether the hop's switch has an answer left for this NIC, so that silence would not be for want of it."""
        return self._budget.left(nic, hop, now_s) >= 1

    def checks(self, live: Mapping[Pair, Iterable[int]], now_s: float) -> tuple[Question, ...]:
        """The checks that are due, given the source ports that `live` flows use."""
        watched = self._urgent or bool(self._health.missing)
        interval_s = self.policy.urgent_check_s if watched else self.policy.check_s
        if not live or now_s - self._checked_s < interval_s:
            return ()
        self._checked_s = now_s
        self._round += 1
        # Each kind of check may spend the answers that the other would need, so they take turns to be first.
        kinds = (self._of_missing_links, self._of_paths_in_use if self._urgent else self._of_oldest_links)
        first = 0 if self._round % 2 and not self._urgent else 1
        due = [*kinds[first](live, now_s), *kinds[1 - first](live, now_s)]
        self._urgent = False
        self._slow.clear()
        return tuple(dict.fromkeys(due))

    def _of_paths_in_use(self, live: Mapping[Pair, Iterable[int]], now_s: float) -> Iterator[Question]:
        """A check of each path that flows use, slow ones first, by each NIC as many as its switches can answer."""
        by_nic: dict[str, list[Question]] = defaultdict(list)
        for pair, ports in sorted(live.items()):
            if not self._knowledge.outdated(pair):
                by_nic[pair[0]] += [
                    check for port in dict.fromkeys(ports) if (check := self._at_last_switch(pair, port))
                ]
        for candidates in by_nic.values():
            wanted = sorted(self._in_turn(candidates), key=self._is_slow, reverse=True)
            yield from self._affordable(wanted, _LEAST_RESERVE, now_s)

    def _is_slow(self, check: Question) -> bool:
        return (*check.pair, check.source_port) in self._slow

    def _of_oldest_links(self, live: Mapping[Pair, Iterable[int]], now_s: float) -> Iterator[Question]:
        """By each NIC a check of the path whose links were crossed longest ago; of several, one that flows use."""
        reserve = _LEAST_RESERVE if self._health.missing else _RESERVE
        crossed_s = defaultdict(lambda: -inf, self._health.answered_s)
        for paths in self._known_paths(live).values():
            used = {path: [port for port in ports if port in live[path.pair]] for path, ports in paths.items()}
            oldest = sorted(
                filter(self._usable, paths),
                key=lambda path: (sorted(map(crossed_s.__getitem__, path.links)), not used[path]),
            )
            wanted = (self._check(path, used[path] or paths[path]) for path in oldest)
            for check in itertools.islice(self._affordable(wanted, reserve, now_s), 1):
                crossed_s |= dict.fromkeys(self._crossed(check), inf)
                yield check

    def _check(self, path: _KnownPath, ports: Sequence[int]) -> Question:
        """A check of a path up to its last switch, by one of the source ports that take it, another one each round."""
        return Question(path.pair, ports[self._round % len(ports)], len(path.links) - 1)

    def _known_paths(self, live: Collection[Pair]) -> dict[str, dict[_KnownPath, list[int]]]:
        """By NIC, the paths that probes have found of live pairs, with their source ports; found again on changes."""
        state = self._knowledge.changes, frozenset(live)
        if state != self._paths_of:
            self._paths_of, self._paths = state, defaultdict(dict)
            for pair in sorted(live):
                for port, entry in self._knowledge.entries(pair).items():
                    if entry.how == PROBES and len(entry.hops) > 1:
                        self._paths[pair[0]].setdefault(_KnownPath(pair, entry.hops[:-1]), []).append(port)
        return self._paths

    def _usable(self, path: _KnownPath) -> bool:
        """Whether what is known is not being replaced, and the path crosses no missing link: those have own checks."""
        return not self._knowledge.outdated(path.pair) and self._health.missing.isdisjoint(path.links)

    def _of_missing_links(self, live: Iterable[Pair], now_s: float) -> Iterator[Question]:
        """A check of each missing link, by one NIC at a time, so that some NIC can always ask soon.

        A NIC that met silence before is preferred, because a second silence confirms the loss.
        """
        for hop, candidates in self._at_missing_links(live).items():
            wanted = sorted(self._in_turn(candidates), key=lambda check: (check.pair[0], hop) not in self._refused)
            yield from itertools.islice(self._affordable(wanted, 0.0, now_s), 1)

    def _in_turn(self, checks: Sequence[Question]) -> list[Question]:
        first = self._round % len(checks) if checks else 0
        return [*checks[first:], *checks[:first]]

    def _at_last_switch(self, pair: Pair, port: int) -> Question | None:
        """None for a path that is not known, or known by counters only."""
        entry = self._knowledge.entries(pair).get(port)
        known = entry is not None and entry.how == PROBES and len(entry.hops) > 1
        return Question(pair, port, len(entry.hops) - 2) if entry and known else None

    def _at_missing_links(self, live: Iterable[Pair]) -> dict[str, list[Question]]:
        """By missing link, the checks that its switch answers when it is back."""
        found: dict[str, list[Question]] = defaultdict(list)
        missing = self._health.missing
        for pair in sorted(live) if missing else ():
            for port, entry in self._knowledge.entries(pair).items():
                crossed = next((position for position, hop in enumerate(entry.hops[:-1]) if hop in missing), None)
                if crossed is not None and entry.how == PROBES:
                    found[entry.hops[crossed]].append(Question(pair, port, crossed))
        return found

    def _affordable(self, checks: Iterable[Question], reserve: float, now_s: float) -> Iterator[Question]:
        """The checks whose switches have answers left beside the reserve; each is spent."""
        for check in checks:
            nic, hop = check.pair[0], self._expected(check)
            if self._budget.surely_left(nic, hop, now_s) >= 1 + min(reserve, self._budget.limits.burst - 1):
                self._budget.spend(nic, hop, now_s)
                yield check

    def evaluate(self, answers: Mapping[Question, str], now_s: float) -> CheckResults:
        """Compare the addresses that answered, "" for none, with those that are known.

        Ports without an answer are suspects as soon as all switches on their path can answer a trace.
        """
        self._refused = {(nic, hop) for nic, hop in self._refused if hop in self._health.missing}
        changed = False
        suspects: dict[Pair, tuple[int, ...]] = {}
        crossed: set[str] = set()
        confirmed: set[str] = set()
        for check, answer in answers.items():
            if check.position >= len(self._hops(check)):
                # The pair was learnt again in the meantime.
                continue
            expected = self._expected(check)
            missing = expected in self._health.missing
            asked = check.pair[0], expected
            if missing and answer and answer != expected:
                # The port takes another path by now, and shows nothing of the missing link.
                self._knowledge.forget((*check.pair, check.source_port))
                continue
            changed |= bool(answer) and (missing or answer != expected)
            if missing and not answer:
                confirmed.update({expected} if asked in self._refused else ())
                self.note_refused([asked], now_s)
            if answer == expected:
                self._knowledge.confirm((*check.pair, check.source_port), now_s)
                crossed.update(self._crossed(check))
            elif not answer and not missing and self._can_trace(check, now_s):
                suspects[check.pair] = (*suspects.get(check.pair, ()), check.source_port)
        return CheckResults(changed, suspects, frozenset(crossed), frozenset(confirmed))

    def _can_trace(self, check: Question, now_s: float) -> bool:
        """Take what a trace of all of this path needs; False if a switch has no answer left, and ask again soon."""
        nic = check.pair[0]
        hops = self._hops(check)[:-1]
        if any(self._budget.surely_left(nic, hop, now_s) < 1 for hop in hops):
            self.request([(*check.pair, check.source_port)])
            return False
        for hop in hops:
            self._budget.spend(nic, hop, now_s)
        return True

    def _crossed(self, check: Question) -> tuple[str, ...]:
        """The links that the check crosses, as far as is known."""
        return self._hops(check)[: check.position + 1]

    def _expected(self, check: Question) -> str:
        return self._hops(check)[check.position]

    def _hops(self, check: Question) -> tuple[str, ...]:
        entry = self._knowledge.entries(check.pair).get(check.source_port)
        return entry.hops if entry else ()
