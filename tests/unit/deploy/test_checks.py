"""What `doctor` says about this machine, with one thing at a time taken away."""

import collections

import pytest

from c4bench.errors import UnhealthyError
from c4bench.lab.machine import checks, kernel
from c4bench.lab.machine.autopsy import Landmarks

Usage = collections.namedtuple("Usage", "free")


def verdict(name):
    return next(check for check in checks.local_checks() if check.name == name)


def refuse(*_):
    raise UnhealthyError("nowhere")


@pytest.mark.parametrize(
    ("name", "target", "replacement", "detail"),
    [
        ("machine", "platform.machine", lambda: "riscv64", "riscv64"),
        ("build tools", "kernel.missing_tools", lambda: ["flex", "bc"], "missing: flex, bc"),
        ("kernel source", "kernel.source_tarball", refuse, "nowhere"),
        ("lab kernel", "kernel.find", lambda: None, "not built"),
        ("user namespaces", "contained", lambda: False, "forbidden here"),
        ("memory directory", "memory_directory", refuse, "nowhere"),
        ("disk room", "shutil.disk_usage", lambda _: Usage(1 << 20), "1 MiB free"),
        ("ptrace", "_TRACE_ME", "raise SystemExit(1)", "forbidden"),
        ("open files", "resource.getrlimit", lambda _: (1024, 4096), "4096 allowed"),
        ("pyverbs", "_IMPORT_PYVERBS", "import no_such_pyverbs", "No module named 'no_such_pyverbs'"),
    ],
)
def test_what_is_missing_is_found_and_comes_with_a_mend(monkeypatch, name, target, replacement, detail):
    """Each check turns bad by itself when its one thing is missing, and says what to do."""
    monkeypatch.setattr(f"c4bench.lab.machine.checks.{target}", replacement)
    check = verdict(name)
    assert not check.ok
    assert detail in check.detail
    assert check.mend


def test_room_for_a_build_is_wanted_only_before_the_build(monkeypatch, tmp_path):
    """A machine with a built kernel needs room for runs, not for a kernel tree."""
    monkeypatch.setattr("c4bench.lab.machine.checks.shutil.disk_usage", lambda _: Usage(kernel.BUILD_BYTES - 1))
    monkeypatch.setattr(kernel, "find", lambda: None)
    assert not verdict("disk room").ok
    built = kernel.Kernel(home=tmp_path, version="6.1", build_s=1.0, landmarks=Landmarks(0, 0, 0, 0, 0, 0, 0, 0))
    monkeypatch.setattr(kernel, "find", lambda: built)
    assert verdict("disk room").ok
