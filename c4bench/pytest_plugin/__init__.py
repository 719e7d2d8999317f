"""The pytest plugin: `pytest --hosts=inventory.yml` or `pytest --hosts=softroce`.

A project asks for it in its pytest settings with `c4_fixtures = true`, and a command line with `--pyargs
c4bench.scenarios`. Without that, the plugin adds neither options
nor fixtures, so that it disturbs no other project of an environment that has c4bench. Without `--hosts`, scenarios are
skipped with the reason `no-hosts`. Every pytest run of such an environment imports this module, so it imports little;
the rest follows when it is needed.
"""

import argparse
import gc
import re
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from types import ModuleType

import pytest

LAB = "softroce"
_ASKED = "c4_fixtures"
_SCENARIOS = "c4bench.scenarios"
_INSTALLED = Path(__file__).parents[1] / "scenarios"
_USAGE_ERROR = 2
_HYPOTHESIS = "hypothesispytest"
_asks = pytest.StashKey[bool]()
_NO_HOSTS = "no-hosts: give --hosts=inventory.yml or --hosts=softroce"
# Why there are no hosts, where that is no choice of the user's.
_absent = pytest.StashKey[str]()
# Options of pytest that only show something, by the names under which it keeps them.
_SHOWN = ("help", "version", "markers", "showfixtures", "show_fixtures_per_test", "cacheshow", "collectonly")
_FIXTURES_SHOWN = ("showfixtures", "show_fixtures_per_test", "collectonly")
# The fixtures that need hosts.
ABSENT = (
    *("atlas", "c4d", "clocks", "cluster", "hosts", "inject", "inventory", "job", "measure", "program"),
    *("rdma_hosts", "run_directory", "save", "shared", "steer", "switches", "trust"),
)
_PARALLEL = re.compile(r"-n(\d+|auto|logical)?|--numprocesses(=.*)?|--tx(=.*)?")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting by which a project asks for c4bench."""
    parser.addini(_ASKED, "offer c4bench's options and fixtures to this project's tests", type="bool", default=False)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """Add the options, after those of all other plugins and conftest files.

    All but `--hosts` carry a prefix. `--hosts` is shared with a plugin that has it already.
    """
    result = yield
    group = parser.getgroup("c4bench", "c4bench: hosts, the embedded lab, faults")
    ours = "--pyargs" in args and any(arg.startswith(_SCENARIOS) for arg in args)
    args[:] = [_folder_of(arg) or arg for arg in args] if ours else args
    early_config.stash[_asks] = ours or bool(early_config.getini(_ASKED))
    if early_config.stash[_asks]:
        _add_hosts(group)
        _add_options(group)
        _refuse_parallel(args)
    elif any(arg.split("=")[0] == "--hosts" for arg in args) and _add_hosts(group):
        sys.stderr.write(f"c4bench: --hosts: {_why_not_asked(early_config, args)}\n")
        raise SystemExit(_USAGE_ERROR)
    return result


def _folder_of(name: str) -> str:
    """The folder of an area of our scenarios, by its module's name, "" for other names: pytest finds no such module."""
    folder = _INSTALLED.joinpath(*name.removeprefix(f"{_SCENARIOS}.").split("."))
    return str(folder) if name.startswith(f"{_SCENARIOS}.") and folder.is_dir() else ""


def _refuse_parallel(args: list[str]) -> None:
    """End before pytest-xdist, or its absence, has a say: hosts have one fault at a time and one master."""
    asked = [arg for arg in args if _PARALLEL.fullmatch(arg)]
    if asked and any(arg.split("=")[0] == "--hosts" for arg in args):
        sys.stderr.write(
            f"c4bench: {asked[0]}: scenarios share the hosts and run one after another; leave it out, "
            "or start several labs, each with its own part of the tests\n"
        )
        raise SystemExit(_USAGE_ERROR)


def _why_not_asked(config: pytest.Config, args: list[str]) -> str:
    """Name the settings that lack ours. After `--hosts PATH` pytest takes PATH for a test and settings from there."""
    value = args[args.index("--hosts") + 1] if "--hosts" in args[:-1] else ""
    if value and Path(value).exists():
        return f"pytest takes its settings from {config.rootpath}; write --hosts={value}"
    for path in (Path(arg.partition("::")[0]).resolve() for arg in args):
        if path.is_relative_to(_INSTALLED):
            area = path.relative_to(_INSTALLED).parts[:1]
            return f"scenarios of the package are named as modules: --pyargs {'.'.join((_SCENARIOS, *area))}"
    where = config.inipath or config.rootpath / "pytest.ini"
    return f"these tests do not ask for c4bench; write `{_ASKED} = true` in {where}"


def _add_hosts(group: pytest.OptionGroup) -> bool:
    """Whether `--hosts` is ours; another plugin may have added it."""
    try:
        group.addoption("--hosts", metavar="INVENTORY|softroce", help="an Ansible inventory, or the embedded lab")
    except (ValueError, argparse.ArgumentError):
        return False
    return True


def _add_options(group: pytest.OptionGroup) -> None:
    group.addoption("--c4-seed", type=int, default=1, help="the lab's seed: same seed, same bytes (default 1)")
    group.addoption("--c4-time", choices=("virtual", "real"), help="the lab's clock (default virtual)")
    group.addoption("--c4-limit", type=float, default=1.0, metavar="HOURS", help="how long a lab may run (1)")
    group.addoption("--c4-topology", default="clos-2x4", help="the lab's fabric: a name, or a .yml file")
    group.addoption("--c4-run-dir", type=Path, help="an existing run directory to write to (default: a new one)")
    group.addoption("--c4-trust", type=Path, help="certificates of master and agents (default ~/.config/c4bench/trust)")
    group.addoption("--c4-page", action="store_true", help="keep the live page's state in the run: c4bench page RUN")
    group.addoption("--c4-detector", default="c4d", metavar="NAME", help="who judges the scenarios' jobs (default c4d)")
    group.addoption("--c4-listen", default="0.0.0.0:7447", help="where agents reach this master")
    group.addoption("--c4-allow-disruptive", action="store_true", help="allow faults on hosts that permit them")
    group.addoption(
        "--c4-require",
        action="append",
        default=[],
        metavar="CAPABILITY",
        help="fail scenarios that would be skipped for want of this (c4bench doctor shows them), or of a fault such as "
        "fault:nic.rate; may be repeated",
    )
    group.addoption("--c4-allow-partial", action="store_true", help="continue without broken hosts")
    group.addoption(
        "--c4-resume", action="store_true", help="leave out what has already passed in the run at --c4-run-dir"
    )
    group.addoption(
        "--c4-reserve",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="reserve the hosts for this run, and for so long after it disappears (default 60; 0: no reservation)",
    )
    group.addoption(
        "--c4-scheduler", metavar="slurm|kubernetes|FILE", help="drain the hosts first, and give them back afterwards"
    )


def _skips(name: str, reason: str) -> object:
    """The fixture of that name in a run without hosts: it skips the test that asks for it, with the reason."""

    @pytest.fixture(name=name, scope="session")  # so that fixtures of any scope may ask for it
    def fixture() -> None:
        pytest.skip(reason)

    return fixture


def _is_asked(config: pytest.Config, options: Iterable[str]) -> bool:
    return any(config.getoption(name, False) for name in options)


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixtures: real ones where there are hosts, else ones that skip."""
    if not config.stash.get(_asks, False):
        return
    config.addinivalue_line(
        "markers",
        "needs(*capabilities, hosts=N): the capabilities a scenario needs (c4bench doctor), and on how many hosts; "
        "it is skipped where they are missing",
    )
    config.addinivalue_line("markers", "nightly: the long form of a scenario, which takes minutes")
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout(seconds): how long a scenario may take, if pytest-timeout is there")
    if _is_asked(config, _FIXTURES_SHOWN):
        from c4bench.pytest_plugin import fixtures  # noqa: PLC0415  (see the module's first lines)

        config.pluginmanager.register(fixtures, "c4bench-fixtures")
    elif not config.option.hosts:
        absent = ModuleType("absent")
        vars(absent).update({name: _skips(name, config.stash.get(_absent, _NO_HOSTS)) for name in ABSENT})
        config.pluginmanager.register(absent, "c4bench-absent")
    elif config.option.hosts != LAB and not _is_asked(config, _SHOWN):
        from c4bench.pytest_plugin import fixtures, scope, verdicts  # noqa: PLC0415

        config.pluginmanager.register(fixtures, "c4bench-fixtures")
        config.pluginmanager.register(scope.Scope(config), "c4bench-scope")
        config.pluginmanager.register(verdicts.Verdicts(config), "c4bench-verdicts")
        gc.freeze()  # what is there by now stays, and pytest looks through all of it for garbage again and again


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Check the command line; with the embedded lab, run this same command inside it."""
    option = config.option
    if not config.stash.get(_asks, False) or not option.hosts or _is_asked(config, _SHOWN):
        return None
    from c4bench.errors import C4Error  # noqa: PLC0415
    from c4bench.foreign_text import one_line  # noqa: PLC0415
    from c4bench.pytest_plugin import outside  # noqa: PLC0415

    try:
        if option.hosts == LAB and (why := outside.missing_programs(option.c4_topology)):
            config.stash[_absent], option.hosts = why, None
            return None
        return outside.prepare(config)
    except C4Error as error:
        sys.stderr.write(f"c4bench: {one_line(error, 20000)}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("c4bench: interrupted\n")
        return int(pytest.ExitCode.INTERRUPTED)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A mark that means nothing is an error of its file, with hosts or without: the test would run anywhere."""
    report = yield
    asks = collector.config.stash.get(_asks, False)
    items = [item for item in report.result or () if isinstance(item, pytest.Item)]
    if asks and any(item.get_closest_marker("needs") for item in items):
        from c4bench.errors import UsageError  # noqa: PLC0415
        from c4bench.pytest_plugin import scope  # noqa: PLC0415

        try:
            scope.check_needs(items)
        except UsageError as error:
            report.outcome, report.longrepr, report.result = "failed", f"c4bench: {error}", []
    return report


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name the hosts, the seed and the run directory."""
    if not config.stash.get(_asks, False) or not config.option.hosts:
        return []
    return [f"c4bench: hosts {config.option.hosts}, seed {config.option.c4_seed}, run {config.option.c4_run_dir}"]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Spare a run whose tests have not used Hypothesis its summary, which imports all of it: two seconds in a lab."""
    plugins = session.config.pluginmanager
    asks = session.config.stash.get(_asks, False)
    if asks and "hypothesis" not in sys.modules and plugins.hasplugin(_HYPOTHESIS):
        plugins.unregister(name=_HYPOTHESIS)
