"""The offline bundle."""

import re
import subprocess
import sys
import tarfile

import pytest

from c4bench.attach import build as attach_build
from c4bench.deploy import prepare
from c4bench.errors import UnhealthyError


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    attach_build.build()
    return prepare.build(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def home(built, tmp_path_factory):
    """The agent's environment, made as playbooks/roles/agent makes it, without pip."""
    home = tmp_path_factory.mktemp("home")
    subprocess.run(["tar", "-xzf", built, "-C", home], check=True)
    interpreter = subprocess.run([home / "bin/interpreter"], capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run([interpreter, "-m", "venv", "--without-pip", "--system-site-packages", home], check=True)
    return home


def said(home, program):
    """What the environment's Python says to a program, with nothing of our own environment."""
    argv = [home / "bin/python", "-I", "-c", program]
    return subprocess.run(argv, env={}, cwd="/", capture_output=True, text=True, check=False)


def test_the_agent_runs_in_an_environment_of_its_own(home):
    """On the host's own Python it finds c4bench and what it needs in the environment, not where the bundle was made."""
    done = said(home, "import c4bench.agent.main, numpy; numpy.ones(3) @ numpy.ones(3); print(c4bench.__file__)")
    assert done.stdout.strip() == str(home / prepare.PACKAGES / "c4bench/__init__.py"), done.stderr


def test_programs_of_others_are_attached_on_its_host(home):
    """All libraries are there, and the one in libibverbs' place where the host's is of the version it was built for."""
    done = said(home, "from c4bench.attach import build as b; print(*b.libraries(), b.profiler(), b.in_place())")
    paths = [*attach_build.libraries(), attach_build.profiler(), attach_build.in_place()]
    own = [home / path.relative_to(sys.prefix) for path in paths]
    assert done.stdout.split() == [str(path) for path in own], done.stderr
    assert [path.read_bytes() for path in own] == [path.read_bytes() for path in paths]


def test_what_the_agent_starts_inherits_none_of_it(home):
    """Another Python that a rank starts has its own packages: nothing leads from it to ours."""
    program = "import subprocess; print(subprocess.run(['/usr/bin/python3', '-c', 'import msgspec']).returncode)"
    done = said(home, program)
    assert done.stdout.strip() == "1", done.stderr
    assert "No module named 'msgspec'" in done.stderr


def test_an_agent_s_start_loads_neither_numpy_nor_cryptography(home):
    """Each is dear on a slow host, and only ranks, or nobody there, needs it."""
    done = said(home, "import c4bench.agent.main, sys; print({'numpy', 'cryptography', 'pyverbs'} & set(sys.modules))")
    assert done.stdout.strip() == "set()", done.stderr


def test_it_is_built_once_and_carries_no_tests(built):
    """The same content is found in the cache, not built again; nothing is in it that only developers use."""
    stamp = built.stat().st_mtime_ns
    assert prepare.build(built.parent) == built
    assert built.stat().st_mtime_ns == stamp
    with tarfile.open(built) as tar:
        names = tar.getnames()
    assert not [name for name in names if name.endswith((".pyi", ".pyc")) or "/tests/" in name]
    assert built.stat().st_size < 25e6


@pytest.mark.parametrize(
    ("tools", "says"),
    [({}, "is for python"), ({"python": "exit 0", "uname": "echo riscv64"}, "is for x86_64|is for aarch64")],
)
def test_another_python_or_machine_is_refused_with_what_to_do(home, tmp_path, tools, says):
    """On a host that the bundle is not for, it says so in one line."""
    for name, does in tools.items():
        tool = tmp_path / (name + (f"{sys.version_info.major}.{sys.version_info.minor}" if name == "python" else ""))
        tool.write_text(f"#!/bin/sh\n{does}\n")
        tool.chmod(0o755)
    argv = ["/bin/sh", home / "bin/interpreter"]
    done = subprocess.run(argv, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert re.search(says, done.stderr)
    assert done.stderr.count("\n") == 1


def test_a_package_missing_here_is_named(monkeypatch, tmp_path):
    """Without a package that agents need there is no bundle."""
    monkeypatch.setattr(prepare, "REQUIRED", ("no-such-package",))
    with pytest.raises(UnhealthyError, match="no-such-package is not installed here"):
        prepare.build(tmp_path)
