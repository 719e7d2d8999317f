"""In which mode a lab runs on this machine."""

import subprocess
import sys

import pytest

from c4bench.errors import UnhealthyError, UsageError
from c4bench.lab.machine import modes
from c4bench.lab.machine.modes import Mode

# What a container's profile does to a system call that it does not list (x86-64: 317 seccomp, 101 ptrace).
FORBID = """
import ctypes, os, struct, sys
steps = ((0x20, 0, 0, 0), (0x15, 0, 1, int(sys.argv[1])), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)), 0, 0) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
ASK = (
    "from c4bench.lab.machine import modes; print(*(modes.obstacle(mode) or 'allowed' for mode in modes.Mode), sep='|')"
)


@pytest.fixture(autouse=True)
def as_found(monkeypatch):
    monkeypatch.delenv(modes.VARIABLE, raising=False)


def test_seccomp_comes_before_ptrace(monkeypatch):
    """The faster mode is taken where both are allowed, the other where it is the only one."""
    monkeypatch.setattr(modes, "obstacle", lambda _: "")
    assert modes.lab_mode() is Mode.SECCOMP
    monkeypatch.setattr(modes, "obstacle", lambda mode: "no" if mode is Mode.SECCOMP else "")
    assert modes.lab_mode() is Mode.PTRACE


def test_a_chosen_mode_is_never_replaced(monkeypatch):
    """Where the chosen mode is forbidden the lab does not run, though the other one would."""
    monkeypatch.setenv(modes.VARIABLE, "ptrace")
    monkeypatch.setattr(modes, "obstacle", lambda _: "")
    assert modes.lab_mode() is Mode.PTRACE
    monkeypatch.setattr(modes, "obstacle", lambda mode: "forbidden" if mode is Mode.PTRACE else "")
    with pytest.raises(UnhealthyError, match="cannot run here: forbidden"):
        modes.lab_mode()
    monkeypatch.setenv(modes.VARIABLE, "kvm")
    with pytest.raises(UsageError, match="kvm: one of seccomp, ptrace"):
        modes.lab_mode()


@pytest.mark.parametrize(
    ("number", "allowed", "words"),
    [
        (999, [True, True], ()),
        (317, [False, True], ("seccomp filters are forbidden", "seccomp=unconfined")),
        (436, [False, True], ("close_range is forbidden", "close_range")),
        (101, [True, False], ("ptrace is forbidden", "SYS_PTRACE")),
    ],
)
def test_what_a_container_forbids_is_found_by_trying(number, allowed, words):
    """Under a filter that refuses one system call, the mode that needs it has an obstacle, with the fix."""
    command = [sys.executable, "-c", FORBID, str(number), "-c", ASK]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().split("|")
    assert [word == "allowed" for word in said] == allowed
    for word in words:
        assert word in "|".join(said)
