"""Set-up of the lab's kernel where something is wrong: one line that says what, where, what to do; nothing half built.

The real command with the real apt, tar and xz; `/usr/src` is empty, and no network is used.
"""

import base64
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

LISTS = Path("/var/lib/apt/lists")
# What is left is listed within: a disk that is mounted there is nowhere else.
EMPTY = 'mount -t tmpfs none /usr/src && {more} "$@"; code=$?; ls -A "$C4BENCH_CACHE"; exit $code'
UNREACHABLE = "http://127.0.0.1:9"
SETUP = ("-m", "c4bench.cli.main", "setup")
# As if the disk had become full after it was looked at.
ANYWAY = "import sys; from c4bench.cli.main import main; from c4bench.lab.machine.kernel import build; "
SETUP_ANYWAY = ("-c", f"{ANYWAY} build.BUILD_BYTES = 0; sys.exit(main(['setup']))")
# The same, and the compiler is given what the source says and not what our patch makes of it.
COMPILE_ANYWAY = (
    "-c",
    f"{ANYWAY} from pathlib import Path; "
    "build.BUILD_BYTES = 0; build.PATCH = Path('/dev/null'); build.ADDED = {}; sys.exit(main(['setup']))",
)
RULES = """\
allnoconfig:
\tcp $(KCONFIG_ALLCONFIG) .config
linux:
\tgcc -c -o lib/filling.o lib/filling.c
"""
LARGE = b"char filling[64 << 20] = {1};\n"
MAKEFILE = "VERSION = {}\nPATCHLEVEL = {}\nSUBLEVEL = {}\n"


@pytest.fixture
def cache(tmp_path):
    made = tmp_path / "cache"
    made.mkdir()
    return made


def source(path, version, filling=b"", rules=""):
    """A source tarball whose Makefile tells this version, and how to build it."""
    members = {
        "Makefile": (MAKEFILE.format(*version) + rules).encode(),
        "arch/um/Makefile": b"",
        "arch/x86/um/Makefile": b"",
        "lib/filling.c": filling,
    }
    with tarfile.open(path, "w:xz", preset=0) as made:
        for name, data in members.items():
            entry = tarfile.TarInfo(f"linux-source/{name}")
            entry.size = len(data)
            made.addfile(entry, io.BytesIO(data))
    return path


def setup(cache, *command, more="", **environment):
    """The command as a user gives it, with no source installed; what comes of it."""
    unshared = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", EMPTY.format(more=more), "sh")
    return subprocess.run(
        [*unshared, sys.executable, *(command or SETUP)],
        env=os.environ | {"C4BENCH_CACHE": str(cache), "C4BENCH_KERNEL_SOURCE": ""} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def is_refused(ended, *words):
    """One line with these words, and of the attempt nothing but the log."""
    assert ended.returncode == 3, ended
    assert ended.stderr.count("\n") == 1, ended.stderr
    for word in words:
        assert word in ended.stderr
    left = [line for line in ended.stdout.splitlines() if not line.startswith("c4bench: ")]
    assert left in (["build.lock"], ["build.lock", "build.log"])


def listed():
    """What the machine's package lists hold."""
    found = sorted(path for path in LISTS.rglob("*") if path.is_file() and os.access(path, os.R_OK))
    return [(path, hashlib.sha256(path.read_bytes()).hexdigest()) for path in found]


def test_an_old_source_is_refused(cache, tmp_path):
    """By what its own Makefile says, whatever the file is called."""
    old = source(tmp_path / "newest.tar.xz", (6, 12, 38))
    ended = setup(cache, C4BENCH_KERNEL_SOURCE=str(old))
    is_refused(ended, f"{old} is Linux 6.12.38", "needs 7.2 or later", "C4BENCH_KERNEL_SOURCE")


def test_a_cut_source_is_refused(cache, tmp_path):
    """A download that was broken off is named as that."""
    cut = source(tmp_path / "linux-source-7.3.tar.xz", (7, 3, 4), os.urandom(1 << 20))
    cut.write_bytes(cut.read_bytes()[: 1 << 19])
    ended = setup(cache, C4BENCH_KERNEL_SOURCE=str(cut))
    is_refused(ended, f"{cut} is cut or damaged (", "get it again")


def test_a_source_that_the_patch_does_not_fit_is_refused(cache, tmp_path):
    """The patch is named, and a version that it fits; the log is kept."""
    other = source(tmp_path / "linux-source-7.3.tar.xz", (7, 3, 4))
    ended = setup(cache, C4BENCH_KERNEL_SOURCE=str(other))
    is_refused(ended, "kernel.patch does not fit Linux 7.3.4", "C4BENCH_KERNEL_SOURCE")
    assert "arch/um" in (cache / "build.log").read_text()


def test_a_disk_that_becomes_full_is_named(cache, tmp_path):
    """In the middle of it, by whichever command; before it begins where that can be known."""
    large = source(tmp_path / "linux-source-7.3.tar.xz", (7, 3, 4), bytes(64 << 20))
    printed = {"more": f"mount -t tmpfs -o size=16m none {cache} &&", "C4BENCH_KERNEL_SOURCE": str(large)}
    is_refused(setup(cache, **printed), "MiB free and the build needs", str(cache), "set C4BENCH_CACHE")
    is_refused(setup(cache, *SETUP_ANYWAY, **printed), f"the disk of {cache} is full", "set C4BENCH_CACHE")


def test_a_disk_that_becomes_full_while_compiling_is_named(cache, tmp_path):
    """The compiler's own word for it is in the log only; of the build nothing is left."""
    large = source(tmp_path / "linux-source-7.3.tar.xz", (7, 3, 4), LARGE, RULES)
    printed = {"more": f"mount -t tmpfs -o size=32m none {cache} &&", "C4BENCH_KERNEL_SOURCE": str(large)}
    ended = setup(cache, *COMPILE_ANYWAY, **printed)
    is_refused(ended, f"building the lab's kernel failed: the disk of {cache} is full", "set C4BENCH_CACHE")


def test_a_path_that_linux_cannot_be_built_in_is_refused(tmp_path):
    """Before anything is fetched or unpacked, which takes a minute."""
    (tmp_path / "my cache").mkdir()
    ended = setup(tmp_path / "my cache", C4BENCH_KERNEL_SOURCE="")
    is_refused(ended, f"{tmp_path}/my cache", "a space or colon", "set C4BENCH_CACHE")


def test_a_machine_without_a_network_gets_manual_instructions(cache):
    """The archive cannot be reached: which one, why, and what to give; the machine's package lists stay as they are."""
    before = listed()
    proxy = dict.fromkeys(("http_proxy", "https_proxy"), UNREACHABLE)
    is_refused(setup(cache, **proxy), "trixie-backports, sid of", "127.0.0.1", "set C4BENCH_KERNEL_SOURCE")
    assert listed() == before


def foreign_signature():
    """An OpenPGP signature of nobody's: well formed, by a key that is in no keyring."""
    issuer = b"\x09\x10" + bytes.fromhex("0123456789abcdef")
    made = b"\x05\x02" + (1_767_225_600).to_bytes(4, "big")
    areas = b"".join(len(area).to_bytes(2, "big") + area for area in (made, issuer))
    body = bytes([4, 0, 1, 8]) + areas + b"\0\0" + (2048).to_bytes(2, "big") + b"\xaa" * 256
    packet = b"\xc2\xff" + len(body).to_bytes(4, "big") + body
    return f"-----BEGIN PGP SIGNATURE-----\n\n{base64.encodebytes(packet).decode()}-----END PGP SIGNATURE-----\n"


@pytest.mark.parametrize("signature", ["", foreign_signature()], ids=["unsigned", "another-key"])
def test_an_archive_that_debian_has_not_signed_is_refused(cache, tmp_path, signature):
    """Whatever it offers nothing is taken from it, nobody having signed it or somebody else."""
    for suite in ("trixie-backports", "sid"):
        folder = tmp_path / "archive/dists" / suite
        folder.mkdir(parents=True)
        (folder / "Release").write_text(f"Origin: Debian\nCodename: {suite}\nComponents: main\nArchitectures: amd64\n")
        if signature:
            (folder / "Release.gpg").write_text(signature)
    (tmp_path / "sources.list").write_text(f"deb [trusted=yes] file:{tmp_path}/archive bookworm main\n")
    (tmp_path / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{tmp_path}/sources.list";\nDir::Etc::sourceparts "/dev/null";\n'
    )
    ended = setup(cache, APT_CONFIG=str(tmp_path / "apt.conf"))
    is_refused(ended, "is not signed by a key of", "debian-archive-keyring", "C4BENCH_KERNEL_SOURCE")
