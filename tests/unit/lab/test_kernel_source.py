"""Which kernel source is taken, and what is read from it; sources here are small tarballs with the same layout."""

import io
import tarfile

import pytest

from c4bench.errors import C4Error, UnhealthyError, UsageError
from c4bench.lab.machine.kernel import cache, source
from c4bench.lab.machine.kernel.cache import Version
from c4bench.lab.machine.kernel.source import SourceOffer
from c4bench.lab.machine.kernel.steps import BuildSteps

MAKEFILE = "# SPDX\nVERSION = {0}\nPATCHLEVEL = {1}\nSUBLEVEL = {2}\nEXTRAVERSION =\n"


def tarball(path, version=(7, 3, 4), *, files=("arch/um/Makefile", "arch/x86/um/Makefile")):
    """A source tarball as Debian makes them, all in one folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:xz") as made:
        for name, text in {"Makefile": MAKEFILE.format(*version), **dict.fromkeys(files, "obj-y :=\n")}.items():
            entry = tarfile.TarInfo(f"{path.name.removesuffix('.tar.xz')}/{name}")
            entry.size = len(text)
            made.addfile(entry, io.BytesIO(text.encode()))
    return path


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch):
    monkeypatch.delenv(cache.SOURCE_VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("7.3.4-1~bpo13+1", (7, 3, 4)),
        ("7.2.13-1", (7, 2, 13)),
        ("linux-source-7.3.tar.xz", (7, 3, 0)),
        ("linux-source-7.3_7.3.4-1~bpo13+1_all.deb", (7, 3, 0)),
        ("10.0-1", (10, 0, 0)),
        ("linux-source", None),
    ],
)
def test_versions_are_read_from_names(text, version):
    """Debian's versions and file names tell the version of Linux; a name without one tells none."""
    assert cache.version_in(text) == version


@pytest.mark.parametrize(
    ("releases", "taken"),
    [
        (["7.2.13-1", "7.3.4-1~bpo13+1", "7.4.1-1"], "7.3.4-1~bpo13+1"),
        (["7.2.13-1", "7.3.9-1", "7.10.1-1"], "7.10.1-1"),
        (["6.12.38-1", "7.2.9-1~bpo13+1"], "7.2.9-1~bpo13+1"),
        (["6.1.1-1", "7.1.20-1"], None),
        ([], None),
    ],
)
def test_a_tested_version_is_taken_before_a_newer_one(monkeypatch, releases, taken):
    """Of what the archive has the newest tested version is taken, else the newest, and nothing older than 7.2."""
    monkeypatch.setattr(cache, "TESTED", (Version(7, 3, 4), Version(7, 2, 1)))
    chosen = source.choose(SourceOffer("linux-source", release) for release in releases)
    assert (chosen.release if chosen else None) == taken


def test_one_line_warns_of_an_untested_version():
    """A tested version says nothing; another one names those that are tested."""
    assert cache.warning(cache.TESTED[-1]) == ""
    said = cache.warning(Version(99, 1, 0))
    assert "99.1.0 has not been tested" in said
    assert str(cache.TESTED[-1]) in said


def test_the_source_is_sought_in_order(tmp_path, monkeypatch):
    """Given comes before installed, installed before fetched; nothing where all are too old."""
    installed, cached = tmp_path / "usr-src", tmp_path / "cache"
    tarball(installed / "linux-source-6.1.tar.xz")
    assert source.at_hand(cached, installed) is None
    older = tarball(cached / "sources/7.2.13-1/linux-source-7.2.tar.xz")
    assert source.at_hand(cached, installed) == older
    newer = tarball(cached / "sources/7.3.4-1~bpo13+1/linux-source-7.3.tar.xz")
    assert source.at_hand(cached, installed) == newer
    here = tarball(installed / "linux-source-7.2.tar.xz")
    assert source.at_hand(cached, installed) == here
    named = tarball(tmp_path / "mine.tar.xz")
    monkeypatch.setenv(cache.SOURCE_VARIABLE, str(named))
    assert source.at_hand(cached, installed) == named


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("linux-7.3.zip", ".tar.xz, .deb"),
        ("linux-source-7.3.tar.xz", "no such file"),
        ("linux-source-6.12.tar.xz", "is Linux 6.12.0 and the lab needs 7.2 or later"),
    ],
)
def test_a_given_source_that_will_not_do_is_refused(tmp_path, monkeypatch, name, words):
    """By its name, by its absence, by its age: before anything is unpacked, with the way to a better one."""
    if "6.12" in name:
        tarball(tmp_path / name)
    monkeypatch.setenv(cache.SOURCE_VARIABLE, str(tmp_path / name))
    with pytest.raises(C4Error) as refused:
        source.at_hand(tmp_path)
    assert words in str(refused.value)
    assert name in str(refused.value)
    assert isinstance(refused.value, UnhealthyError if "6.12" in name else UsageError)


def unpacked(path, tmp_path):
    room = tmp_path / "room"
    room.mkdir()
    return source.unpack(path, room / "source", BuildSteps(room, {}))


def test_the_full_version_is_in_the_makefile(tmp_path):
    """The file's name has no patch level; the source's own Makefile does."""
    assert unpacked(tarball(tmp_path / "linux-source-7.3.tar.xz", (7, 3, 11)), tmp_path) == (7, 3, 11)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.98])
def test_a_cut_source_is_told_from_others(tmp_path, share):
    """However much of the file is missing, one line names it and says what to do."""
    whole = tarball(tmp_path / "linux-source-7.3.tar.xz")
    whole.write_bytes(whole.read_bytes()[: int(share * whole.stat().st_size)])
    with pytest.raises(UnhealthyError) as refused:
        unpacked(whole, tmp_path)
    assert f"{whole} is cut or damaged (" in str(refused.value)
    assert "get it again" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_damaged_source_is_told_from_others(tmp_path):
    """A byte that has changed in the middle is found by the file's own checksums."""
    whole = tarball(tmp_path / "linux-source-7.3.tar.xz")
    data = bytearray(whole.read_bytes())
    data[len(data) // 3] ^= 0xFF
    whole.write_bytes(data)
    with pytest.raises(UnhealthyError, match=r"is cut or damaged \(.*\): get it again"):
        unpacked(whole, tmp_path)


def test_a_source_of_something_else_is_refused(tmp_path):
    """Without user-mode Linux for x86-64 in it nothing is built."""
    other = tarball(tmp_path / "linux-source-7.3.tar.xz", files=("arch/arm64/Makefile",))
    with pytest.raises(UnhealthyError, match="is not a Linux source for x86-64: it has no arch/um/Makefile"):
        unpacked(other, tmp_path)


def test_a_package_without_a_source_is_refused(tmp_path):
    """A file that is not a .deb, such as the login page of a proxy, is reported as cut or damaged."""
    package = tmp_path / "linux-source-7.3_7.3.4-1_all.deb"
    package.write_text("<html>log in</html>")
    with pytest.raises(UnhealthyError, match=r"_all.deb is cut or damaged \(.*\): get it again"):
        source.tarball_of(package, tmp_path / "unpacked", BuildSteps(tmp_path, {}))
