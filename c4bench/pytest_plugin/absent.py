"""The fixtures of a run without `--hosts`: each skips the test that asks for it, with the reason."""

from collections.abc import Callable

import pytest

NAMES = (
    "atlas",
    "c4d",
    "clocks",
    "cluster",
    "hosts",
    "inject",
    "inventory",
    "job",
    "measure",
    "rdma_hosts",
    "run_directory",
    "save",
    "shared",
    "steer",
    "switches",
    "trust",
)


def _absent(name: str) -> Callable[[], None]:
    @pytest.fixture(name=name, scope="session")  # so that fixtures of any scope may ask for it
    def fixture() -> None:
        """Skip: there are no hosts in this run."""
        pytest.skip("no-hosts: give --hosts=inventory.yml or --hosts=softroce")

    return fixture


globals().update({name: _absent(name) for name in NAMES})
