"""Before any test runs: check the command line, make the run directory, and run all in a lab if that is asked for."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from c4bench import inventory
from c4bench.errors import UnhealthyError, UsageError
from c4bench.lab import topology_file as topologies
from c4bench.lab.machine import containment, kernel, launch, packages, programs
from c4bench.lab.machine.modes import lab_mode
from c4bench.lab.machine.run import LabRun
from c4bench.lab.places import RUN
from c4bench.lab.spec import INVENTORY
from c4bench.model.measurement import Clock
from c4bench.pytest_plugin.scope import check_names
from c4bench.pytest_plugin.tenancy import TENANCY, Tenancy
from c4bench.pytest_plugin.verdicts import IN_LAB
from c4bench.record import Ledger, RunDirectory, begin
from c4bench.record.run import ROOT, refuse_finished
from c4bench.report import conclude, evaluate_run, render
from c4bench.report.again import without
from c4bench.report.headlines import sentence
from c4bench.report.markdown import counts
from c4bench.reserve import scheduler

LAB = "softroce"
_PYTEST = "pytest"  # in the lab's folder of the run directory: what pytest writes in the lab
_COLLECTED = re.compile(r"(\d+)(?:/\d+)? tests? collected")
_EVERY_S = 30.0
_ENDED = "ended"
# By the name under which pytest, or pytest-reportlog, keeps the option: the options that name a file to write.
WRITTEN = {"xmlpath": "--junitxml", "report_log": "--report-log", "log_file": "--log-file"}
_TIMESTAMP = re.compile(r'timestamp="[^"]*"')
# What --lf, --ff, --nf and --stepwise read from pytest's cache (pytest: "How to re-run failed tests").
_VALUES = "v"  # the folder of values in a cache's folder
_CACHED = ("cache/lastfailed", "cache/nodeids", "cache/stepwise")
# Held as long as the session lasts.
_RUN = pytest.StashKey[RunDirectory]()


def arguments(config: pytest.Config) -> list[str]:
    """The words of the command line after `pytest`."""
    return [str(argument) for argument in config.invocation_params.args]


def start_run(config: pytest.Config, kind: str, backend: str, topology: str, clock: str, **known: str) -> RunDirectory:
    """The run directory that the command line names, or a new one; held as long as the returned object lives."""
    return begin(
        config.option.c4_run_dir,
        kind,
        command=("pytest", *arguments(config)),
        seed=config.option.c4_seed,
        backend=backend,
        topology=topology,
        clock=clock,
        root=config.rootpath / ROOT,
        resume=config.option.c4_resume,
        **known,
    )


def prepare(config: pytest.Config) -> int | None:
    """None to go on in this process with real hosts; the exit code when the lab has run everything already."""
    check_names(config.option.c4_require)
    _check_detector(config.option.c4_detector)
    if config.option.c4_resume and config.option.c4_run_dir is None:
        raise UsageError("--c4-resume: which run? name it with --c4-run-dir, such as reports/runs/latest")
    if config.option.c4_resume and not RunDirectory(config.option.c4_run_dir).started:
        raise UsageError(f"--c4-resume: {config.option.c4_run_dir} holds no run; see reports/runs, or leave it out")
    if config.option.c4_scheduler:
        scheduler(config.option.c4_scheduler)
    if config.option.hosts == LAB:
        return run_in_lab(config)
    loaded = inventory.load_unless_lab(config.option.hosts, LAB)
    check_names(loaded.requires)
    if _continues_in_lab(config.option.c4_run_dir):
        refuse_finished(RunDirectory(config.option.c4_run_dir), resume=config.option.c4_resume)
    else:
        config.stash[_RUN] = start_run(config, "hosts", "hosts", "", "machine", inventory_digest=loaded.digest)
        config.option.c4_run_dir = config.stash[_RUN].path
    config.stash[TENANCY] = Tenancy(config.option, loaded, shlex.join(["pytest", *arguments(config)]))
    return None


def missing_programs(topology: str) -> str:
    """Why this machine cannot have that lab's switches, and what to install; "" where it can. Raises UsageError."""
    why = programs.obstacle(topologies.load(topology))
    return f"unsupported: {why}" if why else ""


def _check_detector(name: str) -> None:
    """Raise UsageError where no detector of this name can be made; C4D, which takes long to import, always can."""
    if name != "c4d":
        from c4bench.c4d import detectors  # noqa: PLC0415

        detectors.detector(name)


def _continues_in_lab(given: Path | None) -> bool:
    """Whether we are in a lab whose run was begun outside, which has already recorded the machine."""
    return IN_LAB and given is not None and given.is_dir() and RunDirectory(given).started


def run_in_lab(config: pytest.Config) -> int:
    """Collect, boot a lab, run the tests in it, write the report; return the exit code of the pytest in the lab.

    Raises C4Error, before a run directory is made, for what can be known to fail.
    """
    option = config.option
    topology = topologies.load(option.c4_topology)
    clock = option.c4_time or "virtual"
    interactive = debugs(config, clock)
    packages.require_pyverbs()
    refused, tests = collect(config)
    if refused:
        return refused
    built = kernel.require()
    launch.require_machine(len(topology.hosts))
    built_as = {"kernel": built.version, "kernel_build": built.build, "lab_mode": lab_mode()}
    run = start_run(config, "main", LAB, topology.name, clock, **built_as)
    sys.stdout.write(f"c4bench: {run.path} is {RUN} in the lab\n")
    sys.stdout.flush()
    files = carried(config, run.path.resolve() / launch.LAB_DIRECTORY / _PYTEST)
    try:
        with containment.unwinding(), files as words, progress(run, tests):
            lab = launch.launch(
                topology,
                lab_command(config, run.path, clock, words),
                run.path,
                seed=option.c4_seed,
                virtual=clock == "virtual",
                interactive=interactive,
                limit_s=3600 * option.c4_limit,
            )
    except KeyboardInterrupt:
        show_so_far(run)
        raise
    record_times(run, built, lab, booted=not interactive)
    code = conclude(run, lab.exit_code)
    sys.stdout.write(f"c4bench: report {render(run.path)}\n")
    return code


def show_so_far(run: RunDirectory) -> None:
    """Say how the tests of a run that was interrupted have ended, and where its report is."""
    verdict = evaluate_run(run.path)
    taken = [f"{taken.outcome:<13} {sentence(taken)}" for taken in verdict.measurements]
    ended = f"c4bench: so far {counts(verdict)}"
    sys.stdout.writelines(f"{line}\n" for line in [*taken, ended, f"c4bench: report {render(run.path)}"])
    sys.stdout.flush()


def record_times(run: RunDirectory, built: kernel.Kernel, lab: LabRun, *, booted: bool = True) -> None:
    """Record what the machine's clock told; `booted` is false where nobody saw when the lab was up."""
    ledger = Ledger(run, "lab")
    if booted:
        ledger.measure("lab.boot_s", lab.boot_s, "s", clock=Clock.MACHINE)
    ledger.measure("lab.machine_s_per_virtual_s", lab.machine_s / lab.virtual_s, "s/s", clock=Clock.MACHINE)
    ledger.measure("setup.kernel_build_s", built.build_s, "s", clock=Clock.MACHINE)
    if built.setup_s is not None:
        ledger.measure("setup.total_s", built.setup_s, "s", clock=Clock.MACHINE)


def lab_command(config: pytest.Config, run_directory: Path, clock: str, more: Sequence[str]) -> list[str]:
    """The words of the command; `more` are options that come after the user's, and so take their place."""
    given = [*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *_located(arguments(config), config)]
    return [
        sys.executable,
        "-m",
        "pytest",
        *without(given, {"--hosts"}),
        f"--rootdir={config.rootpath}",
        *([f"--config-file={config.inipath}"] if config.inipath else []),
        f"--hosts={INVENTORY}",
        f"--c4-run-dir={run_directory.resolve()}",
        f"--c4-trust={launch.trust_directory(run_directory)}",
        f"--c4-time={clock}",
        "--c4-allow-disruptive",
        "--c4-reserve=0",  # a lab is nobody else's
        f"--color={'yes' if sys.stdout.isatty() else 'no'}",
        *more,
    ]


def debugs(config: pytest.Config, clock: str) -> bool:
    """Whether a debugger is asked for. Raises UsageError where it could not be used."""
    asked = [flag for name, flag in (("usepdb", "--pdb"), ("trace", "--trace")) if config.getoption(name, False)]
    if not asked:
        return False
    if clock == "virtual":
        raise UsageError(f"{asked[0]}: a lab in virtual time has no terminal to debug at; add --c4-time=real")
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture:
        capture.suspend_global_capture(in_=True)  # pytest has put a file in place of our input
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise UsageError(f"{asked[0]}: a debugger needs a terminal, and this run has none; leave it out")
    return True


def _located(words: Sequence[str], config: pytest.Config) -> list[str]:
    """Paths of tests from the root on: our working directory may have another name in the lab than beside them.

    Words that name no file here are left as they are: options, and modules after `--pyargs`.
    """
    here = config.invocation_params.dir
    named = set(config.args) if config.args_source is pytest.Config.ArgsSource.ARGS else set()
    return [str(here / word) if word in named and (here / word.partition("::")[0]).exists() else word for word in words]


def collect(config: pytest.Config) -> tuple[int, int]:
    """Collect with the same command line in a new process: (pytest's exit code, how many tests are chosen).

    What pytest says is passed on where the exit code is not 0. It says how many at one verbosity only, which options
    before cannot change.
    """
    unwritten = [f"{flag}=" for name, flag in WRITTEN.items() if config.getoption(name, None)]
    command = [sys.executable, "-m", "pytest", *arguments(config), "--collect-only", "--verbosity=-1", *unwritten]
    done = subprocess.run(
        command,
        cwd=config.invocation_params.dir,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.stdout.write(done.stdout)
    return done.returncode, chosen(done.stdout)


def chosen(said: str) -> int:
    """How many tests a collection says it has chosen; 0 where it does not say."""
    found = _COLLECTED.findall(said)
    return int(found[-1]) if found else 0


@contextmanager
def progress(run: RunDirectory, total: int, every_s: float = _EVERY_S) -> Iterator[None]:
    """Around a lab that runs `total` tests (0: not known): a line to stderr every 30 s where no terminal shows any.

    pytest prints nothing there while a test runs. A test counts once its call has ended; a skipped one never does.
    """
    stopped = threading.Event()
    thread = threading.Thread(target=_report, args=(run, total, every_s, stopped), name="lab-progress", daemon=True)
    if not sys.stdout.isatty():
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        if thread.ident is not None:
            thread.join()


def _report(run: RunDirectory, total: int, every_s: float, stopped: threading.Event) -> None:
    began = time.monotonic()
    before = sum(event["kind"] == _ENDED for event in run.events())  # of a run that this one resumes
    while not stopped.wait(every_s):
        ended = [event["node"] for event in run.events() if event["kind"] == _ENDED][before:]
        last = f", the last {ended[-1]}" if ended else ""
        count = f"{len(ended)} of {total}" if total else f"{len(ended)}"
        sys.stderr.write(f"c4bench: {time.monotonic() - began:.0f} s: {count} tests have run{last}\n")
        sys.stderr.flush()


@contextmanager
def carried(config: pytest.Config, folder: Path) -> Iterator[list[str]]:
    """The words by which a pytest in the lab writes to `folder`, which the lab may write to, instead of the machine.

    After the block the files are where the user wants them, also those of a lab that had to be ended. Raises UsageError
    for a file that cannot be written, before anything is started.
    """
    wanted = _wanted(config)
    for path in wanted.values():
        _check(path)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "cache").mkdir(parents=True)
    cache, began = _cache(config), datetime.now().astimezone().isoformat()
    try:
        if cache and not config.getoption("cacheclear"):
            _copy(cache, folder / "cache")
        words = [f"{flag}={_inside(folder, flag)}" for flag in wanted]
        yield [*words, *(["-o", f"cache_dir={folder / 'cache'}"] if cache else [])]
    finally:
        if "--junitxml" in wanted:
            _date(_inside(folder, "--junitxml"), began)
        for flag, path in wanted.items():
            _bring_out(_inside(folder, flag), path)
        if cache:
            _copy(folder / "cache", cache)
        shutil.rmtree(folder, ignore_errors=True)


def _wanted(config: pytest.Config) -> dict[str, Path]:
    """By option: the file that the user asked for."""
    named = {flag: config.getoption(name, None) for name, flag in WRITTEN.items()}
    return {flag: config.invocation_params.dir / Path(path).expanduser() for flag, path in named.items() if path}


def _inside(folder: Path, flag: str) -> Path:
    return folder / flag.removeprefix("--")


def _check(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name a file that can be written") from None


def _date(report: Path, began: str) -> None:
    """Write the machine's date into a JUnit report, which has that of the lab's clock."""
    if report.exists():
        report.write_text(_TIMESTAMP.sub(f'timestamp="{began}"', report.read_text(), count=1))


def _bring_out(written: Path, path: Path) -> None:
    if not written.exists():  # the lab was ended before pytest wrote it
        return
    try:
        shutil.copyfile(written, path)
    except OSError as error:
        raise UnhealthyError(f"{path}: {error.strerror}; make room there, and run again") from None


def _cache(config: pytest.Config) -> Path | None:
    """The folder of pytest's cache; None under `-p no:cacheprovider`. The cache itself is made later than a lab."""
    if not config.pluginmanager.hasplugin("cacheprovider"):
        return None
    folder: str = config.getini("cache_dir")
    return config.rootpath / os.path.expandvars(folder)


def _copy(source: Path, target: Path) -> None:
    """Copy the values that there are from one cache's folder to another's."""
    for key in _CACHED:
        value = source / _VALUES / key
        if value.exists():
            place = target / _VALUES / key
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(value, place)
