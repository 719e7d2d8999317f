"""What `doctor` says about hosts, on answers of every kind."""

import time

import msgspec
import pytest

from c4bench.deploy.doctor import host_checks
from c4bench.inventory import load
from c4bench.remote import Completed, connect


@pytest.fixture
def inventory(tmp_path):
    path = tmp_path / "hosts.yml"
    path.write_text(
        "all: {hosts: {here: {ansible_connection: local, c4: {python: /bin/false, nics: [{device: mlx5_none}]}}}}"
    )
    return load(path)


class Skewed:
    """A connection to a host whose clock is ahead."""

    def __init__(self, real, ahead_s):
        self._real, self._ahead_s = real, ahead_s

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self._real.close()

    def run(self, argv, **options):
        if argv[0] == "date":
            return Completed(0, f"{time.time() + self._ahead_s}\n".encode(), b"")
        return self._real.run(argv, **options)


def verdicts(checks):
    return {check.name.removeprefix("here: "): check.ok for check in checks}


def test_each_thing_is_looked_at_by_itself(inventory):
    """A host without agent and NIC is reachable all the same, and the missing NIC is named."""
    checks = host_checks(inventory)
    found = verdicts(checks)
    assert found["reachable"]
    assert found["clock"]
    assert not found["c4bench"]
    assert not found["RDMA devices"]
    assert any("lacks mlx5_none" in check.detail for check in checks)
    assert all(check.mend for check in checks if not check.ok)


@pytest.mark.parametrize(("ahead_s", "near"), [(0.0, True), (3.0, False), (-3.0, False)])
def test_a_clock_that_is_off_is_found(inventory, ahead_s, near):
    """Seconds ahead or behind are no good for comparing telemetry."""
    checks = host_checks(inventory, lambda host, access: Skewed(connect(host, access), ahead_s))
    assert verdicts(checks)["clock"] is near


def test_a_host_that_cannot_be_reached_gets_one_line(inventory):
    """Nothing is said about what could not be looked at."""
    silent = msgspec.structs.replace(inventory.access["here"], connection="ssh", address="127.0.0.1", port=1)
    checks = host_checks(msgspec.structs.replace(inventory, access={"here": silent}))
    assert verdicts(checks) == {"reachable": False}
