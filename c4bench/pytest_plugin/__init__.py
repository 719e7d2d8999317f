"""The pytest plugin: `pytest --hosts inventory.yml` or `pytest --hosts softroce`.

Inert without `--hosts`: then scenarios are skipped with the reason `no-hosts`. What is imported here is imported by
every pytest run of every project that has c4bench installed, so only this much is; the rest follows when hosts are
named.
"""

import sys
from pathlib import Path

import pytest

LAB = "softroce"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Everything but `--hosts` carries a prefix, so as not to meet another plugin's options."""
    group = parser.getgroup("c4bench", "c4bench: hosts, the embedded lab, faults")
    group.addoption("--hosts", metavar="INVENTORY|softroce", help="an Ansible inventory, or the embedded lab")
    group.addoption("--c4-seed", type=int, default=1, help="the lab's seed: same seed, same bytes (default 1)")
    group.addoption("--c4-time", choices=("virtual", "real"), help="the lab's clock (default virtual)")
    group.addoption("--c4-limit", type=float, default=1.0, metavar="HOURS", help="how long a lab may run (1)")
    group.addoption("--c4-topology", default="clos-2x4", help="the lab's fabric: a name, or a .yml file")
    group.addoption("--c4-run-dir", type=Path, help="an existing run directory to write to (default: a new one)")
    group.addoption("--c4-trust", type=Path, help="certificates of master and agents (default ~/.config/c4bench/trust)")
    group.addoption("--c4-listen", default="0.0.0.0:7447", help="where agents reach this master")
    group.addoption("--c4-allow-disruptive", action="store_true", help="allow faults on hosts that permit them")
    group.addoption(
        "--c4-require",
        action="append",
        default=[],
        metavar="CAPABILITY",
        help="fail what would be skipped for want of this (c4bench doctor shows them); may be repeated",
    )
    group.addoption("--c4-allow-partial", action="store_true", help="go on without the hosts that are broken")
    group.addoption(
        "--c4-resume", action="store_true", help="leave out what has passed already in the run at --c4-run-dir"
    )
    group.addoption(
        "--c4-reserve",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="nobody else uses the hosts meanwhile, nor for so long after we vanish (default 60; 0: no reservation)",
    )
    group.addoption(
        "--c4-scheduler", metavar="slurm|kubernetes|FILE", help="drain the hosts first, and give them back afterwards"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Bring in fixtures: real ones where there are hosts, else such that skip."""
    config.addinivalue_line(
        "markers",
        "needs(*capabilities, hosts=N): what a scenario wants of its hosts (c4bench doctor), and of how many; "
        "skipped where that is missing",
    )
    if not config.option.hosts:
        from c4bench.pytest_plugin import absent  # noqa: PLC0415  (see the module's first lines)

        config.pluginmanager.register(absent, "c4bench-absent")
    elif config.option.hosts != LAB:
        from c4bench.pytest_plugin import fixtures, scope, verdicts  # noqa: PLC0415

        config.pluginmanager.register(fixtures, "c4bench-fixtures")
        config.pluginmanager.register(scope.Scope(config), "c4bench-scope")
        config.pluginmanager.register(verdicts.Verdicts(config), "c4bench-verdicts")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Check what was asked for; with the embedded lab, run this same command inside it."""
    if not config.option.hosts or config.option.help or config.option.collectonly:
        return None
    from c4bench.errors import C4Error  # noqa: PLC0415
    from c4bench.pytest_plugin import outside  # noqa: PLC0415

    try:
        return outside.prepare(config)
    except C4Error as error:
        sys.stderr.write(f"c4bench: {error}\n")
        return error.exit_code


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what this run is on."""
    if not config.option.hosts:
        return []
    return [f"c4bench: hosts {config.option.hosts}, seed {config.option.c4_seed}, run {config.option.c4_run_dir}"]
