"""The offline bundle."""

import subprocess
import tarfile

import pytest

from c4bench.deploy import bundle
from c4bench.errors import UnhealthyError


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return bundle.build(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def home(built, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    subprocess.run(["tar", "-xzf", built, "-C", home], check=True)
    return home


def said(home, program, path="/usr/bin:/bin"):
    """What the unpacked Python says to a program, with nothing of our environment but a search path."""
    argv = ["/bin/sh", home / "bin/python", "-c", program]
    return subprocess.run(argv, env={"PATH": path}, cwd="/", capture_output=True, text=True, check=False)


def test_the_bundled_agent_runs_on_the_system_s_python_alone(home):
    """Unpacked anywhere, its launcher finds c4bench and what it needs beside itself, not where the bundle was made."""
    done = said(home, "import c4bench.agent.main, numpy; numpy.ones(3) @ numpy.ones(3); print(c4bench.__file__)")
    assert done.stdout.strip() == str(home / "site/c4bench/__init__.py"), done.stderr


def test_an_agent_s_start_loads_neither_numpy_nor_cryptography(home):
    """Each is dear on a slow host, and only ranks, or nobody there, needs it."""
    done = said(home, "import c4bench.agent.main, sys; print({'numpy', 'cryptography', 'pyverbs'} & set(sys.modules))")
    assert done.stdout.strip() == "set()", done.stderr


def test_it_is_built_once_and_carries_no_tests(built):
    """The same content is found in the cache, not built again; nothing is in it that only developers use."""
    stamp = built.stat().st_mtime_ns
    assert bundle.build(built.parent) == built
    assert built.stat().st_mtime_ns == stamp
    with tarfile.open(built) as tar:
        names = tar.getnames()
    assert not [name for name in names if name.endswith((".pyi", ".pyc")) or "/tests/" in name]
    assert built.stat().st_size < 25e6


def test_another_host_s_python_is_refused_with_the_mend(home):
    """On a host without the bundle's Python version the launcher says so in one line."""
    done = said(home, "", path="")
    assert done.returncode == 3
    assert "install it" in done.stderr


def test_a_package_missing_here_is_named(monkeypatch, tmp_path):
    """Without a package that agents need there is no bundle."""
    monkeypatch.setattr(bundle, "REQUIRED", ("no-such-package",))
    with pytest.raises(UnhealthyError, match="no-such-package is not installed here"):
        bundle.build(tmp_path)
