"""Which scenarios run, and on what: needs and skips, health between modules, resumption, what will be touched."""

import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec
import pytest

from c4bench.decoding import DecodingError, from_json
from c4bench.doctor import capabilities
from c4bench.errors import C4Error, UnhealthyError, UsageError, meant
from c4bench.foreign_text import one_line
from c4bench.inject import catalogue
from c4bench.pytest_plugin.tenancy import TENANCY, Tenancy
from c4bench.pytest_plugin.verdicts import NOTHING_LEFT, scenario_name, skip_reason
from c4bench.record import RunDirectory

# What a scenario needs may be a fault of the catalogue, `fault:nic.rate`, beside a capability.
FAULT = "fault:"
_ENDED = "ended"
_UNTIMED_S = 60.0
_A_MINUTE_S = 60.0


class Scope:
    """Hooks about the session as a whole."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._module: Path | None = None
        self._real_failure = False  # something failed for another reason than a host's being unhealthy

    @property
    def _run(self) -> RunDirectory:
        return RunDirectory(self._config.option.c4_run_dir)

    @pytest.hookimpl(trylast=True)  # of what was chosen by -k and -m
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what has passed before the interruption that `--c4-resume` makes good.

        A finished run was not interrupted: what failed in it stays, and only what it has not run is added.
        """
        if not config.option.c4_resume:
            return
        collected = len(items)
        ended = [event for event in self._run.events() if event["kind"] == _ENDED]
        kept = {event["node"]: event["scenario"] for event in ended}
        if not self._run.finished:
            kept = _without_failures(kept, ended)
            self._run.keep_scenarios(kept.values())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in kept])
        items[:] = [item for item in items if item.nodeid not in kept]
        config.stash[NOTHING_LEFT] = bool(collected) and not items

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Before anything is degraded: what, where, and for how long."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or not self._config.option.c4_reserve or TENANCY not in self._config.stash:
            return
        tenancy = self._config.stash[TENANCY]
        for line in announcement(session.items, self._config, past_durations(self._run.path.parent)):
            reporter.write_line(f"c4bench: {line}")
        state = "broken" if tenancy.refusal else "without"
        for host, reason in tenancy.broken.items():
            reporter.write_line(f"c4bench: {state} {host}: {reason}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip what asks for more than the hosts have; look at the hosts between modules."""
        tenancy = self._config.stash.get(TENANCY, None)
        if tenancy is None or not set(getattr(item, "fixturenames", ())) & {"inventory"}:
            return
        if item.path != self._module:
            self._module = item.path
            tenancy.recheck()
        if tenancy.refusal:
            pytest.skip(tenancy.refusal)
        if is_disruptive(item) and not self._config.option.c4_allow_disruptive:
            pytest.skip("disruptive-not-allowed: give --c4-allow-disruptive to allow faults on these hosts")
        reason = lacking(item, tenancy)
        if reason:
            pytest.skip(reason)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self,
        item: pytest.Item,
        call: pytest.CallInfo[None],
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Fail a skip that `--c4-require` forbids, and note what has ended, for a run that resumes this one."""
        report = yield
        if report.skipped and required(report, self._required()):
            report.outcome = "failed"
            report.longrepr = f"required, and missing: {skip_reason(report)}"
        if report.failed and not (call.excinfo and call.excinfo.errisinstance(UnhealthyError)):
            self._real_failure = True
        if report.when == "call" or report.failed:
            what = {"node": item.nodeid, "scenario": scenario_name(item)}
            self._run.event(0.0, _ENDED, **what, passed=report.passed, duration_s=report.duration)
        return report

    def _required(self) -> set[str]:
        tenancy = self._config.stash.get(TENANCY, None)
        return {*self._config.option.c4_require, *(tenancy.inventory.requires if tenancy else ())}

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before the verdict is given and any report is written
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """End as unhealthy when a broken host has stopped the run, unless a test failed for another reason."""
        tenancy = self._config.stash.get(TENANCY, None)
        if tenancy is not None:
            tenancy.recheck()
            self._end(session, tenancy)
        yield

    def _end(self, session: pytest.Session, tenancy: Tenancy) -> None:
        unjudged = {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
        if not self._real_failure:
            unjudged.add(pytest.ExitCode.TESTS_FAILED)
        if tenancy.refusal and session.exitstatus in unjudged:
            session.exitstatus = UnhealthyError.exit_code
        elif self._config.stash.get(NOTHING_LEFT, False) and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
        for host, reason in tenancy.broken.items():
            self._run.lose_host(host, reason)

    def pytest_unconfigure(self) -> None:
        """Give the hosts back, whatever has happened."""
        tenancy = self._config.stash.get(TENANCY, None)
        if tenancy is not None:
            try:
                tenancy.close()
            except C4Error as error:
                sys.stderr.write(f"c4bench: {one_line(error)}\n")


def _without_failures(nodes: Mapping[str, str], ended: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The nodes of which nothing has failed, also not what is done after the test, with their scenarios."""
    failed = {event["node"] for event in ended if not event["passed"]}
    return {node: scenario for node, scenario in nodes.items() if node not in failed}


def announcement(items: Iterable[pytest.Item], config: pytest.Config, past: dict[str, float]) -> list[str]:
    """What will be touched: the hosts that permit faults, the faults by name, and how long it took before.

    What these hosts cannot do is skipped, and takes no time.
    """
    tenancy = config.stash[TENANCY]
    chosen = [item for item in items if not lacking(item, tenancy)]
    disruptive = [item for item in chosen if is_disruptive(item)]
    if not config.option.c4_allow_disruptive:
        left = f"; {len(disruptive)} scenarios would, and are skipped (--c4-allow-disruptive)" if disruptive else ""
        reading = [item for item in chosen if item not in disruptive]
        return [
            f"nothing is degraded{left}",
            f"{len(reading)} scenarios, {_minutes(reading, past)}{_untimed(reading, past)}",
        ]
    hosts = [host.name for host in tenancy.inventory.hosts if host.disruptive]
    faults = sorted({name for item in disruptive for name in faults_of(item)})
    return [
        f"{len(disruptive)} of {len(chosen)} scenarios degrade {', '.join(hosts) or 'no host, since none permits it'}",
        f"faults: {', '.join(faults) or 'none'}; each ends by itself, on its host, when its lease does",
        f"{_minutes(disruptive, past)} of disruption, {_minutes(chosen, past)} in all{_untimed(chosen, past)}",
    ]


def is_disruptive(item: pytest.Item) -> bool:
    """Whether a scenario injects faults."""
    return "inject" in getattr(item, "fixturenames", ()) or "disruptive" in needs(item)[0]


def check_needs(items: Iterable[pytest.Item]) -> None:
    """Raises UsageError for a `needs` mark that asks for what nobody can have: such a scenario would run anywhere."""
    for item in items:
        for marker in item.iter_markers("needs"):
            where = f"{item.nodeid}: needs({_words(marker)})"
            unknown = [name for name in marker.kwargs if name != "hosts"]
            if unknown:
                raise UsageError(f"{where}: {unknown[0]!r} is no keyword{meant(unknown[0], ['hosts'], '; use hosts')}")
            hosts = marker.kwargs.get("hosts", 1)
            if type(hosts) is not int or hosts < 1:
                raise UsageError(f"{where}: hosts={hosts!r} is no number of hosts; give 1 or more")
            try:
                check_names(map(str, marker.args))
            except UsageError as error:
                raise UsageError(f"{where}: {error}") from None


def check_names(names: Iterable[str]) -> None:
    """Raises UsageError for what is neither a capability nor `fault:` and a name of the catalogue."""
    given = list(names)
    capabilities.check(name for name in given if not name.startswith(FAULT))
    for name in given:
        if name.startswith(FAULT):
            catalogue.load().find(name.removeprefix(FAULT))


def _words(marker: pytest.Mark) -> str:
    return ", ".join([*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items())])


def needs(item: pytest.Item) -> tuple[frozenset[str], int]:
    """The capabilities that a scenario and its module are marked to need, and on how many hosts; 0 without a mark."""
    markers = list(item.iter_markers("needs"))
    wanted = frozenset(name for marker in markers for name in marker.args if not name.startswith(FAULT))
    return wanted, max((marker.kwargs.get("hosts", 1) for marker in markers), default=0)


def lacking(item: pytest.Item, tenancy: Tenancy) -> str:
    """What a scenario needs and these hosts lack, as a reason to skip it; "" if they have it."""
    wanted, hosts = needs(item)
    implied = ("rdma",) if "rdma_hosts" in getattr(item, "fixturenames", ()) else ()
    shortage = tenancy.shortage(sorted(wanted), hosts, implied)
    return shortage or (no_fault(tenancy.faults().left_out(sorted(faults_of(item)))) if is_disruptive(item) else "")


def no_fault(left_out: Mapping[str, str]) -> str:
    """The reason to skip what needs these faults, of which the first is named with its own; "" for none."""
    return next((f"no-{FAULT}{name}: {why}" for name, why in left_out.items()), "")


def faults_of(item: pytest.Item) -> set[str]:
    """The catalogue's names that stand in a test's code or parameters, and those that it is marked to need."""
    known = catalogue.load().specs
    strings = _strings(getattr(getattr(item, "function", None), "__code__", None))
    call = getattr(item, "callspec", None)
    strings |= {value for value in (call.params.values() if call else ()) if isinstance(value, str)}
    marked = {name for marker in item.iter_markers("needs") for name in marker.args}
    return {name for name in known if name in strings or f"{FAULT}{name}" in marked}


def _strings(code: CodeType | None) -> set[str]:
    """The strings in a function's code, and in that of functions within it."""
    constants = code.co_consts if code else ()
    inner = [_strings(constant) for constant in constants if isinstance(constant, CodeType)]
    return {constant for constant in constants if isinstance(constant, str)}.union(*inner)


class _Ended(msgspec.Struct, frozen=True):
    node: str
    duration_s: float


def past_durations(runs: Path) -> dict[str, float]:
    """How long each scenario took when it last ended, by node, as the runs in that folder tell."""
    durations: dict[str, float] = {}
    for path in sorted(runs.glob("*/events.jsonl")):
        for line in path.read_text(errors="replace").splitlines():
            if f'"{_ENDED}"' in line:
                with suppress(DecodingError):
                    ended = from_json(line, _Ended)
                    durations[ended.node] = ended.duration_s
    return durations


def _minutes(items: Sequence[pytest.Item], past: Mapping[str, float]) -> str:
    seconds = sum(past.get(item.nodeid, _UNTIMED_S) for item in items)
    return f"about {seconds / 60:.1f} min" if seconds >= _A_MINUTE_S else "less than a minute"


def _untimed(items: Sequence[pytest.Item], past: Mapping[str, float]) -> str:
    new = sum(item.nodeid not in past for item in items)
    return f" ({new} never timed here, taken as {_UNTIMED_S:g} s each)" if new else ""


def required(report: pytest.TestReport, names: Iterable[str]) -> bool:
    """Whether a skip is for want of one of these capabilities, or of the agents through which it would be used."""
    reason = skip_reason(report)
    wanted = {*names, *(("agents",) if capabilities.THROUGH_AGENTS.intersection(names) else ())}
    return any(reason.startswith((f"no-{name}:", f"{name}-not-allowed:")) for name in wanted)
