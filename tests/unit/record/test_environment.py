"""What a run's figures depend on, and what of it is not the same."""

import hashlib
import platform
import subprocess
import sys

import pytest
from msgspec.structs import replace

from c4bench.record.encoding import decode
from c4bench.record.provenance import Environment, Provenance, chosen_by, differences, gather

CPUINFO = """\
processor\t: 0
flags\t\t: fpu vme sse4_2 hypervisor avx2 fma constant_tsc avx512f erms
bugs\t\t: spectre_v1

processor\t: 1
flags\t\t: fpu amx_tile
"""
THEN = Environment(
    python="3.11.2",
    packages={"numpy": "2.4.5", "msgspec": "0.22.0"},
    kernel="7.3.4",
    kernel_build="kernel-a",
    lab_mode="seccomp",
    rdma_core="44.0-2",
    architecture="x86_64",
    processor=("avx2", "avx512f"),
)
OLD_RUN = b"""{"name": "n", "started_at": "", "version": "0", "git_commit": "", "git_dirty": false, "python": "3.11.2",
"platform": "Linux", "command": [], "seed": 1, "backend": "softroce", "topology": "pair", "clock": "virtual"}"""


def test_packages_are_those_that_pip_lists():
    """Each installed distribution is there with its version, under the name that the lock has for it."""
    command = [sys.executable, "-m", "pip", "list", "--format=freeze", "--exclude=c4bench"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    listed = [line.split("==") for line in done.stdout.split()]
    found = gather()
    named = {name.lower().replace("_", "-").replace(".", "-"): version for name, version in listed}
    assert found.packages == named
    assert found.python == platform.python_version()


def test_the_digest_is_of_lines_that_pip_understands():
    """Anybody can make it from a sorted list of `name==version`."""
    assert THEN.packages_digest == hashlib.sha256(b"msgspec==0.22.0\nnumpy==2.4.5\n").hexdigest()


def test_features_are_those_that_libraries_choose_by():
    """Of the first processor's flags those count by which a library takes other instructions."""
    assert chosen_by(CPUINFO) == ("avx2", "avx512f", "erms", "fma", "sse4_2")
    assert chosen_by("Features\t: fp asimd\n") == ()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, ""),
        ({"kernel_build": "kernel-b"}, ""),
        ({"lab_mode": "ptrace"}, "lab mode seccomp, now ptrace"),
        ({"kernel": "6.1.192"}, "kernel 7.3.4, now 6.1.192"),
        ({"rdma_core": ""}, "rdma-core 44.0-2, now none"),
        ({"processor": ("avx2",)}, "processor's avx512f present, now none"),
        ({"packages": {"numpy": "2.4.6", "msgspec": "0.22.0"}}, "numpy 2.4.5, now 2.4.6"),
        (
            {"python": "3.13.1", "architecture": "aarch64", "packages": {"a": "1", "b": "2"}},
            "Python 3.11.2, now 3.13.1; architecture x86_64, now aarch64; a none, now 1; b none, now 2; 2 more",
        ),
    ],
)
def test_what_differs_is_one_line(changed, told):
    """What counts is named with both values, the kernel first and packages last; the kernel's build does not count."""
    assert differences(THEN, replace(THEN, **changed)) == told


def test_runs_of_before_are_read_and_compare_with_none():
    """A run that recorded no environment has one that differs from each that is known, and from no other such."""
    old = decode(OLD_RUN, Provenance, "run.json").environment
    assert differences(old, THEN) == "the environment was not recorded"
    assert differences(old, old) == ""
