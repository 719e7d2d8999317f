"""How a source is fetched, with stand-ins for apt and dpkg-deb that record what they are asked."""

import pytest

from c4bench.errors import UnhealthyError
from c4bench.lab.machine.kernel import source

MIRROR = "http://mirror.example/debian/"
SECURITY = "http://mirror.example/security/"
VENDOR = "http://vendor.example/apt/"
NAMED = ((VENDOR, "bookworm"), (MIRROR, "bookworm"), (MIRROR, "bookworm-updates"), (SECURITY, "bookworm-security"))
URIS = "".join(f"'{address}dists/{suite}/InRelease' mirror.example_InRelease 0\n" for address, suite in NAMED)
OWNERS = f"{VENDOR} Vendor\n{MIRROR} Debian\n{MIRROR} Debian\n{SECURITY} Debian\n"
MADISON = f"""\
linux-source-7.2 | 7.2.13-1 | {MIRROR} sid/main amd64 Packages
linux-source-7.3 | 7.3.4-1~bpo13+1 | {MIRROR} trixie-backports/main amd64 Packages
"""


# Keeps the configuration that it is given, and the folder of sources beside it.
APT_GET = """\
for word in "$@"; do
  case "$word" in
    --config-file=*) folder="$(dirname "${{word#*=}}")"; cp -r "$folder/apt.conf" "$folder/sources" {here}/;;
    APT::Status-Fd=*) status="${{word#*=}}";;
  esac
done
echo "$@" >> {here}/asked
case "$1" in
  indextargets) cat {here}/owners;;
  update) case "$2" in --print-uris) cat {here}/uris;; *) {update};; esac;;
  download) echo dlstatus:1:50.0:Retrieving >&"$status"; {download};;
esac
"""
APT_CACHE = "case $1 in pkgnames) cat {here}/names;; madison) cat {here}/madison;; esac"
DPKG_DEB = "mkdir -p $3/usr/src; echo source > $3/usr/src/linux-source-7.3.tar.xz"
NAMES = "linux-source-7.2\nlinux-source-7.3\nlinux-source-x"


@pytest.fixture
def apt(tmp_path, monkeypatch):
    """`apt(update=SHELL, download=SHELL, uris=TEXT, owners=TEXT, names=TEXT)`: stand-ins on PATH; where they write."""
    programs, here = tmp_path / "programs", tmp_path / "said"
    for folder in (programs, here, tmp_path / "cache"):
        folder.mkdir()
    (tmp_path / "keyring.gpg").touch()
    monkeypatch.setattr(source, "KEYRING", tmp_path / "keyring.gpg")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def make(update="true", download="true", uris=URIS, owners=OWNERS, names=NAMES):
        for name, text in {"uris": uris, "owners": owners, "names": names, "madison": MADISON}.items():
            (here / name).write_text(text)
        for name, text in {"apt-get": APT_GET, "apt-cache": APT_CACHE, "dpkg-deb": DPKG_DEB}.items():
            (programs / name).write_text("#!/bin/bash\n" + text.format(here=here, update=update, download=download))
            (programs / name).chmod(0o755)
        return here

    return make


TAKEN = "touch linux-source-7.3_7.3.4-1~bpo13+1_all.deb"


def test_a_source_is_fetched_into_the_cache(apt, tmp_path, capsys):
    """The tested version is asked for and kept under its full version; nothing else stays; progress is plain lines."""
    here = apt(download=TAKEN)
    kept = source.fetch(tmp_path / "cache")
    assert kept == tmp_path / "cache/sources/7.3.4-1~bpo13+1/linux-source-7.3.tar.xz"
    assert kept.read_text() == "source\n"
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == ["sources"]
    assert "download linux-source-7.3=7.3.4-1~bpo13+1 --config-file=" in (here / "asked").read_text()
    assert "c4bench: fetching linux-source-7.3 7.3.4-1~bpo13+1: 50 %\n" in capsys.readouterr().out
    assert source.fetched(tmp_path / "cache") == [kept]


def test_apt_is_told_to_keep_to_our_folder(apt, tmp_path):
    """Every place that apt writes to is ours, the machine's hooks are off, and only the archive's own keys count."""
    here = apt(download=TAKEN)
    source.fetch(tmp_path / "cache")
    settings = dict(
        line.rstrip(";").split(" ", 1) for line in (here / "apt.conf").read_text().splitlines() if line[0] != "#"
    )
    ours = f'"{tmp_path / "cache"}/fetch-'
    for name in ("Dir::State", "Dir::Cache", "Dir::Etc::sourceparts"):
        assert settings[name].startswith(ours)
    assert settings["Dir::Etc::sourcelist"] == settings["Dir::State::status"] == '"/dev/null"'
    assert "#clear APT::Update::Post-Invoke;" in (here / "apt.conf").read_text()
    assert (here / "sources/newer.sources").read_text().splitlines() == [
        "Types: deb",
        f"URIs: {MIRROR}",
        "Suites: trixie-backports sid",
        "Components: main",
        "Architectures: amd64",
        "Targets: Packages",
        f"Signed-By: {tmp_path / 'keyring.gpg'}",
    ]


@pytest.mark.parametrize(
    ("owners", "found"),
    [(OWNERS, [MIRROR]), ("", [VENDOR, MIRROR])],
)
def test_the_mirror_is_the_machines_own(apt, owners, found):
    """By its lists apt knows which archive is Debian's; before it has any, the key decides among all."""
    apt(owners=owners)
    assert source.mirrors() == found


BY_HAND = "C4BENCH_KERNEL_SOURCE"
REFUSED = "W: Failed to fetch http://mirror.example/debian/dists/sid/InRelease  Could not connect to 127.0.0.1:9"
UNSIGNED = "W: GPG error: http://mirror.example sid InRelease: NO_PUBKEY 0123456789ABCDEF"
FULL = "E: Write error - write (28: No space left on device)"


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ({"uris": ""}, ("no Debian archive", BY_HAND)),
        ({"names": "", "update": f"echo '{REFUSED}' >&2"}, ("trixie-backports, sid", "Could not connect", BY_HAND)),
        ({"names": "", "update": f"echo '{UNSIGNED}' >&2; exit 100"}, ("not signed by a key of", "keyring", BY_HAND)),
        ({"names": "", "update": f"echo '{FULL}' >&2; exit 100"}, ("is full", "C4BENCH_CACHE")),
        ({"names": "linux-source-x"}, ("cannot fetch", BY_HAND)),
        ({"download": "echo 'E: Hash Sum mismatch' >&2; exit 100"}, ("Hash Sum mismatch", BY_HAND)),
    ],
)
def test_what_keeps_a_source_away_is_said_in_one_line(apt, tmp_path, steps, words):
    """No archive, no network, a key that does not fit, a full disk, a wrong package: what, where, the way by hand."""
    apt(**steps)
    with pytest.raises(UnhealthyError) as refused:
        source.fetch(tmp_path / "cache")
    assert "\n" not in str(refused.value)
    for word in words:
        assert word in str(refused.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_machine_without_apt_is_told_the_way_by_hand(tmp_path, monkeypatch):
    """Nothing to fetch with: one line, before anything is made."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnhealthyError, match=rf"without apt-get: install it, or set {BY_HAND}"):
        source.fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []
