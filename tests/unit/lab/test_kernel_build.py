"""What the build of a kernel keeps, checks and says."""

import msgspec
import pytest

from c4bench.errors import UnhealthyError
from c4bench.lab.machine.autopsy import Landmarks
from c4bench.lab.machine.kernel import build, cache, steps
from c4bench.lab.machine.kernel.cache import Facts, Version
from c4bench.lab.machine.kernel.steps import BuildSteps, reason

NOWHERE = Landmarks(0, 0, 0, 0, 0, 0, 0, 0)
SIGNED_OUT = "# CONFIG_SYSCTL is not set\n"


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """`cached(VERSION)`: a kernel of that version as the cache has it, and its source, if that were given."""
    monkeypatch.setenv("C4BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(cache.SOURCE_VARIABLE, raising=False)

    def make(version):
        origin = tmp_path / f"linux-source-{version}.tar.xz"
        origin.write_text(version)
        home = cache.home_of(origin)
        home.mkdir(parents=True)
        cache.describe(home, Facts(version, cache.identity(origin), 1.0, NOWHERE))
        return origin

    return make


def test_the_best_kernel_is_used_whatever_was_built_last(cached, monkeypatch):
    """A tested version before a newer one; without a source, the network or an order of building in it."""
    monkeypatch.setattr(cache, "TESTED", (Version(7, 3, 4),))
    assert cache.find() is None
    for version, best in (("7.2.13", "7.2.13"), ("7.3.4", "7.3.4"), ("7.10.1", "7.3.4")):
        cached(version).unlink()
        assert cache.find().version == best


def test_a_given_source_chooses_its_own_kernel(cached, monkeypatch):
    """The one that was built from it and no other; none where its source has changed or is gone."""
    other, given = cached("7.3.4"), cached("7.2.1")
    monkeypatch.setenv(cache.SOURCE_VARIABLE, str(given))
    assert cache.require().version == "7.2.1"
    given.write_text("changed")
    with pytest.raises(UnhealthyError, match="c4bench setup"):
        cache.require()
    given.unlink()
    assert cache.find() is None
    assert other.exists()


def test_another_recipe_is_another_kernel(cached, monkeypatch, tmp_path):
    """A kernel that was built with another configuration is not found."""
    cached("7.3.4")
    assert cache.find()
    changed = tmp_path / "kernel.config"
    changed.write_text(cache.CONFIG.read_text() + "CONFIG_MORE=y\n")
    monkeypatch.setattr(cache, "CONFIG", changed)
    assert cache.find() is None


def test_the_source_is_on_record(cached):
    """What a kernel was built from stands beside it, with the version in full."""
    origin = cached("7.3.4")
    facts = msgspec.json.decode((cache.home_of(origin) / "kernel.json").read_bytes())
    assert facts["version"] == "7.3.4"
    assert facts["source"] == "linux-source-7.3.4.tar.xz 5"


@pytest.mark.parametrize(
    ("configured", "gone"),
    [
        ("CONFIG_SYSCTL=y\nCONFIG_ID=1234\n", []),
        (SIGNED_OUT + "CONFIG_ID=1234\n", ["CONFIG_SYSCTL"]),
        ("CONFIG_SYSCTL=y\nCONFIG_ID=-1\nCONFIG_SYSCTL_MORE=y\n", ["CONFIG_ID"]),
        ("", ["CONFIG_SYSCTL", "CONFIG_ID"]),
    ],
)
def test_symbols_that_vanished_are_named(configured, gone):
    """Asked for and left out, or given another value: either is an error of the build that names them."""
    wanted = "# comment\nCONFIG_SYSCTL=y\n\nCONFIG_ID=1234\n# CONFIG_OTHER is not set\n"
    assert build.vanished(wanted, configured) == gone


def test_a_build_sees_nothing_of_its_caller(monkeypatch, tmp_path):
    """No flag, locale or job server of the caller's: the same compiler makes the same kernel everywhere."""
    for name in ("CFLAGS", "KCFLAGS", "MAKEFLAGS", "CC", "LANG", "KBUILD_BUILD_USER"):
        monkeypatch.setenv(name, "mine")
    seen = BuildSteps(tmp_path, build.environment(tmp_path / "source")).run("looking", ["env"])
    assert "mine" not in seen
    assert "KBUILD_BUILD_USER=c4bench\n" in seen
    assert f"KCFLAGS=-ffile-prefix-map={tmp_path}/source=.\n" in seen


def test_a_build_takes_the_distributions_programs_first(monkeypatch, tmp_path):
    """A user's own compiler makes another kernel of the same recipe; what only the user has is found still."""
    for name in ("gcc", "only-mine"):
        (tmp_path / name).write_text("#!/bin/sh\necho mine\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    steps = BuildSteps(tmp_path, build.environment(tmp_path / "source"))
    assert "mine" not in steps.run("looking", ["gcc", "--version"])
    assert steps.run("looking", ["only-mine"]) == "mine\n"


def test_a_kernels_program_is_told_apart(tmp_path):
    """Two builds of one recipe that differ in a byte have the same folder and another digest."""
    told = []
    for content in (b"a", b"b"):
        (tmp_path / "linux").write_bytes(content)
        told.append(cache.describe(tmp_path, Facts("7.3.4", "", 1.0, NOWHERE)).build)
    assert told[0] == f"{tmp_path.name} sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
    assert told[1] != told[0]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (["  CC a.o", "a.c:1: error: no such member", "make[2]: *** [a.o] Error 1"], "a.c:1: error: no such member"),
        (["gcc: fatal error: Killed signal terminated program cc1"], "Killed signal"),
        (["make: *** [Makefile:1] Error 2"], "it printed nothing"),
        (["1 out of 2 hunks FAILED"], "1 out of 2 hunks FAILED"),
    ],
)
def test_the_line_that_tells_most_is_picked(said, told):
    """The first line that speaks of an error, not make's word that there was one."""
    assert told in reason(said)


def test_a_full_disk_is_called_that(tmp_path):
    """Whichever command runs into it, the message says which disk, and the log is kept where there is room."""
    steps = BuildSteps(tmp_path / "build-x", {"TMPDIR": "/"})
    with pytest.raises(UnhealthyError, match=rf"linking failed: the disk of {tmp_path} is full: make room") as full:
        steps.run("linking", ["sh", "-c", "echo 'ld: final link failed: No space left on device'; exit 1"])
    assert "\n" not in str(full.value)
    steps.write_log(tmp_path / "log")
    assert "final link failed" in (tmp_path / "log").read_text()


def test_progress_is_a_few_plain_lines_where_there_is_no_terminal(capsys):
    """One at each quarter, whatever the number of steps."""
    with steps.ProgressLine("working") as shown:
        for step in range(1000):
            shown.show(step / 1000)
    assert capsys.readouterr().out.splitlines() == [f"c4bench: working: {part} %" for part in (0, 25, 50, 75, 100)]
