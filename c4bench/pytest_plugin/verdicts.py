"""From measurements to test outcomes: a missed limit fails the test that took it, what was not seen is never a pass."""

import os
import re
import time
from collections.abc import Generator

import msgspec
import pytest
from _pytest.junitxml import xml_key

from c4bench.errors import C4Error, InconclusiveError
from c4bench.foreign_text import one_line
from c4bench.model.measurement import Outcome
from c4bench.record import Ledger, RunDirectory
from c4bench.report import conclude, evaluate_run, render
from c4bench.report.headlines import sentence

IN_LAB = "C4BENCH_IN_LAB" in os.environ
_SECOND_NS = 10**9
_OWN_ERROR = re.compile(r"^(?:\S+:\d+: \w+Error|c4bench\.errors\.\w+|Failed): ")
_REASON_AT_MOST = 300
LEDGER = pytest.StashKey[Ledger]()
# Whether the run that this one resumes has nothing left to run.
NOTHING_LEFT = pytest.StashKey[bool]()


def scenario_name(item: pytest.Item) -> str:
    """`c4d.slow_receiver` for tests/scenarios/c4d/test_c4d.py::test_slow_receiver."""
    module = item.path.stem.removeprefix("test_")
    return f"{module}.{item.name.removeprefix('test_')}"


def _is_plain(item: pytest.Item) -> bool:
    """Whether a test uses neither hosts nor measurements: its failure counts, and it says nothing about the hosts."""
    return not {"inventory", "run_directory"} & set(getattr(item, "fixturenames", ()))


class Verdicts:
    """Hooks that record all that happens in a session, and have the verdict on these records decide."""

    def __init__(self, config: pytest.Config) -> None:
        self._run = RunDirectory(config.option.c4_run_dir)
        self._virtual = IN_LAB and config.option.c4_time == "virtual"
        self._begun: dict[str, tuple[str, bool]] = {}  # by node: its scenario, and whether it is plain
        self._unseen: set[tuple[str, str]] = set()  # tests by node and phase that have seen no fault take effect
        self._ended = 0
        self._uncollected: list[pytest.CollectReport] = []
        self._cut = ""  # why the session was cut short
        self._crashed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """After the test's own assertions have held, hold its measurements against their limits."""
        result = yield
        ledger = pyfuncitem.stash.get(LEDGER, None)
        for measurement in ledger.taken if ledger else ():
            if measurement.outcome is Outcome.FAIL:
                pytest.fail(f"missed: {sentence(measurement)}", pytrace=False)
            if measurement.outcome is Outcome.INCONCLUSIVE:
                pytest.fail(f"inconclusive: {sentence(measurement)}", pytrace=False)
        return result

    def pytest_runtest_setup(self) -> None:
        """Begin each test on a whole second of virtual time: what was imported, collected or run before moves nothing.

        Reading the lab's clock takes virtual time, and pytest reads it often before a test starts.
        """
        self._wait_for_a_whole_second()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        """End the setup of a shared fixture on a whole second too: it does not move the test that has set it up."""
        value = yield
        if fixturedef.scope != "function":
            self._wait_for_a_whole_second()
        return value

    def _wait_for_a_whole_second(self) -> None:
        if self._virtual:
            time.sleep(-time.monotonic_ns() % _SECOND_NS / _SECOND_NS)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember a file of tests that is skipped as a whole, or cannot be collected."""
        if not report.passed:
            self._uncollected.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Tests begin, if there are any."""
        if session.items:
            self._run.begin_session()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Remember what a report does not say of its test."""
        report = yield
        self._begun[report.nodeid] = scenario_name(item), _is_plain(item)
        if call.excinfo is not None and _is_unseen(call.excinfo):
            self._unseen.add((report.nodeid, report.when))
        if report.failed and call.excinfo and call.excinfo.errisinstance(C4Error) and not item.config.option.fulltrace:
            report.longrepr = _in_one_line(item, call.excinfo)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write down how each test ended, as pytest counts it, so that the run can be judged from its directory."""
        if report.when == "call" or not report.passed:
            scenario, plain = self._begun.get(report.nodeid, (report.nodeid, True))
            unseen = (report.nodeid, report.when) in self._unseen
            self._run.finish_scenario(scenario, _outcome(report, unseen=unseen), _reason(report), plain=plain)

    def pytest_runtest_logfinish(self) -> None:
        """A test has had its turn."""
        self._ended += 1

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Ctrl-C, `pytest.exit`, or too many errors."""
        self._cut = f"interrupted: {_in_words(excinfo)}"

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Pytest or a plugin is broken."""
        self._cut, self._crashed = f"pytest crashed: {_in_words(excinfo)}", True

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """End the records before any report is written; once all others have had their say, the verdict decides."""
        self._end_session(session)
        verdict = evaluate_run(self._run.path)
        counted = {"scenarios": verdict.scenario_counts, "skips": verdict.skips}
        self._run.write_provenance(msgspec.structs.replace(self._run.provenance(), **counted))
        _tell_junit(session.config, verdict.outcome)
        yield
        session.exitstatus = conclude(self._run, int(session.exitstatus))

    def _end_session(self, session: pytest.Session) -> None:
        """Record what was not collected, and whether all tests were run. A resumed run may have none left."""
        for report in self._uncollected:
            record = self._run.note_problem if report.failed else self._run.finish_scenario
            record(report.nodeid or "collection", _outcome(report), _reason(report))
        if session.config.option.c4_resume and not (session.items or self._cut or self._uncollected):
            if session.config.stash.get(NOTHING_LEFT, False) and not self._run.finished:
                self._run.end_session()
            return
        self._run.end_session(*self._session_end(session))
        conclude(self._run, int(session.exitstatus))

    def _session_end(self, session: pytest.Session) -> tuple[Outcome, str]:
        """How the session itself ended, and why not well."""
        left = len(session.items) - self._ended
        if self._crashed:
            return Outcome.FAIL, one_line(self._cut)
        if left > 0 or self._cut or not session.items:
            what = f"{left} of {len(session.items)} tests have not ended" if session.items else "no test was run"
            return Outcome.INCONCLUSIVE, one_line(f"{what}{_why(self._cut)}")
        return Outcome.PASS, ""

    def pytest_terminal_summary(self, terminalreporter: "pytest.TerminalReporter") -> None:
        """One line a measurement. In the lab, what the machine's clock told is void."""
        taken = [*self._run.measurements(), *(() if IN_LAB else self._run.timings())]
        if taken:
            terminalreporter.section("measurements")
        for measurement in taken:
            terminalreporter.write_line(f"{measurement.outcome:<13} {sentence(measurement)}")
        if not IN_LAB:  # a lab's report is written outside it, where that takes no time
            terminalreporter.write_line(f"c4bench: report {render(self._run.path)}")


def _in_words(error: pytest.ExceptionInfo[BaseException]) -> str:
    return ": ".join(filter(None, (type(error.value).__name__, str(error.value))))


def _in_one_line(item: pytest.Item, error: pytest.ExceptionInfo[BaseException]) -> str:
    """An error for users with the line of their test that led to it: how we came to see it helps nobody."""
    file, began, _ = item.location
    own = [entry.lineno for entry in error.traceback if entry.path == item.path]
    return f"{file}:{(own[-1] if own else began or 0) + 1}: {type(error.value).__name__}: {error.value}"


def _why(text: str) -> str:
    return f" ({text})" if text else ""


def _tell_junit(config: pytest.Config, outcome: Outcome) -> None:
    """Have `--junitxml` say the verdict too: what makes a run inconclusive is no failure of a test."""
    if xml := config.stash.get(xml_key, None):
        xml.add_global_property("c4bench.verdict", outcome.value)


def _is_unseen(error: pytest.ExceptionInfo[BaseException]) -> bool:
    return error.errisinstance(InconclusiveError) or str(error.value).startswith("inconclusive:")


def _outcome(report: pytest.TestReport | pytest.CollectReport, *, unseen: bool = False) -> Outcome:
    if report.passed:
        return Outcome.PASS
    if report.skipped:
        return Outcome.SKIP
    return Outcome.INCONCLUSIVE if unseen else Outcome.FAIL


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped, such as `no-rdma: ...`."""
    if expected := getattr(report, "wasxfail", ""):
        return f"expected to fail: {expected}"
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if report.skipped:
        return skip_reason(report)
    return "" if report.passed else failure_message(report)


def failure_message(report: pytest.TestReport | pytest.CollectReport) -> str:
    """What a failed test's error says, in one line and without its place in a file.

    An error for users says all itself; of others the type is part of what happened.
    """
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else _errors_of(report.longreprtext)
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return _OWN_ERROR.sub("", line)[:_REASON_AT_MOST]


def _errors_of(text: str) -> str:
    """Of a text that pytest wrote of a fixture or a file of tests, the last line that it marks as the error."""
    marked = [line.removeprefix("E ") for line in text.splitlines() if line.startswith("E ")]
    return marked[-1] if marked else text
