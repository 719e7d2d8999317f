"""From measurements to test outcomes: a missed limit fails the test that took it, what was not seen is never a pass."""

import os
import re
import time
from collections.abc import Generator

import msgspec
import pytest

from c4bench.errors import InconclusiveError
from c4bench.model.measurement import Outcome
from c4bench.record import Ledger, RunDirectory
from c4bench.report import evaluate_run, render
from c4bench.report.headlines import sentence

IN_LAB = "C4BENCH_IN_LAB" in os.environ
_SECOND_NS = 10**9
_OWN_ERROR = re.compile(r"^(?:c4bench\.errors\.\w+|Failed): ")
_REASON_AT_MOST = 300
LEDGER = pytest.StashKey[Ledger]()


def scenario_name(item: pytest.Item) -> str:
    """`c4d.slow_receiver` for tests/scenarios/c4d/test_c4d.py::test_slow_receiver."""
    module = item.path.stem.removeprefix("test_")
    return f"{module}.{item.name.removeprefix('test_')}"


def is_scenario(item: pytest.Item) -> bool:
    """Whether a test uses hosts or records measurements."""
    return bool({"inventory", "run_directory"} & set(getattr(item, "fixturenames", ())))


class Verdicts:
    """Hooks that judge each scenario by what it measured."""

    def __init__(self, config: pytest.Config) -> None:
        self._run = RunDirectory(config.option.c4_run_dir)
        self._virtual = IN_LAB and config.option.c4_time == "virtual"

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

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Write down how each scenario ended, so that the run can be judged again from its directory."""
        report = yield
        if is_scenario(item) and (report.when == "call" or not report.passed):
            self._run.finish_scenario(scenario_name(item), _outcome(report, call), _reason(report))
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Count the scenarios in `run.json`; a run that skipped most of them exits as inconclusive, never as passed."""
        verdict = evaluate_run(self._run.path)
        counted = {"scenarios": verdict.scenario_counts, "skips": verdict.skips}
        self._run.write_provenance(msgspec.structs.replace(self._run.provenance(), **counted))
        if verdict.mostly_skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = InconclusiveError.exit_code

    def pytest_terminal_summary(self, terminalreporter: "pytest.TerminalReporter") -> None:
        """One line a measurement. In the lab, what the machine's clock told is void."""
        taken = [*self._run.measurements(), *(() if IN_LAB else self._run.timings())]
        if taken:
            terminalreporter.section("measurements")
        for measurement in taken:
            terminalreporter.write_line(f"{measurement.outcome:<13} {sentence(measurement)}")
        if not IN_LAB:  # a lab's report is written outside it, where that takes no time
            terminalreporter.write_line(f"c4bench: report {render(self._run.path)}")


def _outcome(report: pytest.TestReport, call: pytest.CallInfo[None]) -> Outcome:
    if report.passed:
        return Outcome.PASS
    unseen = call.excinfo is not None and (
        call.excinfo.errisinstance(InconclusiveError) or str(call.excinfo.value).startswith("inconclusive:")
    )
    if report.skipped:
        return Outcome.SKIP
    return Outcome.INCONCLUSIVE if unseen else Outcome.FAIL


def skip_reason(report: pytest.TestReport) -> str:
    """Why a test was skipped, such as `no-rdma: ...`."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def _reason(report: pytest.TestReport) -> str:
    if report.skipped:
        return skip_reason(report)
    return "" if report.passed else failure_message(report)


def failure_message(report: pytest.TestReport) -> str:
    """What a failed test's error says, in one line and without its place in a file.

    An error for users says all itself; of others the type is part of what happened.
    """
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return _OWN_ERROR.sub("", line)[:_REASON_AT_MOST]
