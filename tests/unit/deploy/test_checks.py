"""What `doctor` says about this machine, with one thing at a time taken away."""

import collections

import pytest

from c4bench.errors import UnhealthyError
from c4bench.lab.machine import checks, kernel, modes
from c4bench.lab.machine.autopsy import Landmarks
from c4bench.lab.machine.kernel import build, source

Usage = collections.namedtuple("Usage", "free")


def verdict(name):
    return next(check for check in checks.local_checks() if check.name == name)


def refuse(*_):
    raise UnhealthyError("nowhere")


@pytest.mark.parametrize(
    ("name", "target", "replacement", "detail"),
    [
        ("machine", "platform.machine", lambda: "riscv64", "riscv64"),
        ("build tools", "build.missing_tools", lambda: ["flex", "bc"], "missing: flex, bc"),
        ("kernel source", "source.at_hand", refuse, "nowhere"),
        ("lab kernel", "kernel.find", lambda: None, "not built"),
        ("user namespaces", "contained", lambda: False, "forbidden here"),
        ("memory directory", "memory_directory", refuse, "nowhere"),
        ("disk room", "shutil.disk_usage", lambda _: Usage(1 << 20), "1 MiB free"),
        ("lab mode", "modes.obstacle", lambda mode: f"{mode} is forbidden: allow it", "seccomp is forbidden"),
        ("memory", "MEMORY_BYTES", 1 << 60, "that a lab may fill"),
        ("open files", "resource.getrlimit", lambda _: (1024, 1024), "1024 allowed"),
        ("pyverbs", "packages.pyverbs_obstacle", lambda: "No module named 'pyverbs'", "No module named 'pyverbs'"),
    ],
)
def test_what_is_missing_is_reported_with_what_to_do(monkeypatch, name, target, replacement, detail):
    """Each check turns bad by itself when its one thing is missing, and says what to do."""
    monkeypatch.setattr(f"c4bench.lab.machine.checks.{target}", replacement)
    check = verdict(name)
    assert not check.ok
    assert detail in check.detail
    assert check.fix


def test_room_for_a_build_is_wanted_only_before_the_build(monkeypatch, tmp_path):
    """A machine with a built kernel needs room for runs, not for a kernel tree."""
    monkeypatch.setattr("c4bench.lab.machine.checks.shutil.disk_usage", lambda _: Usage(build.BUILD_BYTES - 1))
    monkeypatch.setattr(kernel, "find", lambda: None)
    assert not verdict("disk room").ok
    built = kernel.Kernel(home=tmp_path, version="6.1", build_s=1.0, landmarks=Landmarks(0, 0, 0, 0, 0, 0, 0, 0))
    monkeypatch.setattr(kernel, "find", lambda: built)
    assert verdict("disk room").ok


def test_the_mode_of_a_lab_is_said(monkeypatch):
    """Seccomp where it is allowed, else ptrace with the reason, since a lab then takes twice as long."""
    monkeypatch.delenv(modes.VARIABLE, raising=False)
    monkeypatch.setattr(modes, "obstacle", lambda _: "")
    assert verdict("lab mode").detail == "seccomp"
    monkeypatch.setattr(modes, "obstacle", lambda mode: "no filters here" if mode is modes.Mode.SECCOMP else "")
    assert verdict("lab mode").ok
    assert verdict("lab mode").detail == "ptrace, which takes twice as long as seccomp: no filters here"


def test_a_source_that_is_not_here_is_no_obstacle(monkeypatch):
    """It is fetched at set-up, and the check says from where without asking the network."""
    monkeypatch.setattr(source, "at_hand", lambda _: None)
    monkeypatch.setattr("c4bench.lab.machine.checks.source.mirrors", lambda: ["http://mirror.example/debian"])
    assert verdict("kernel source").ok
    assert verdict("kernel source").detail == "to be fetched from trixie-backports, sid of http://mirror.example/debian"
