"""Where the kernel's source comes from: given, installed, fetched before, or fetched now; and what is in it.

It is fetched from a newer suite of Debian's archive, as an ordinary user. apt does it, with its own configuration,
package lists and cache inside our cache: it checks the lists by the archive's key, and the package by the lists.
Nothing is installed, and the machine's package lists stay as they are.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from c4bench.errors import UnhealthyError, UsageError
from c4bench.lab.machine.kernel import cache
from c4bench.lab.machine.kernel.cache import OLDEST, Version
from c4bench.lab.machine.kernel.steps import FULL, BuildSteps, ProgressLine, StepError, no_space

_NEEDED = ("Makefile", "arch/um/Makefile", "arch/x86/um/Makefile")
# Half of the source's bytes are in files of drivers and tools that a user-mode kernel does not use.
_LEFT_OUT = (
    "drivers/gpu/*.[ch]",
    "drivers/media/*.[ch]",
    "sound/*.[ch]",
    "tools/perf/*",
    "tools/testing/*",
    "Documentation/*.rst",
)
_RECORDS, _RECORD_BYTES = 1000, 10240  # tar reports its progress this often


def tarball_of(source: Path, folder: Path, steps: BuildSteps) -> Path:
    """The source's .tar.xz: `source` itself, or the one inside a Debian package, unpacked into `folder`."""
    if source.suffix != ".deb":
        return source
    try:
        steps.run(f"unpacking {source}", ["dpkg-deb", "--extract", str(source), str(folder)])
    except StepError as error:
        raise _damaged(source, error) from None
    tarballs = sorted(folder.glob("usr/src/linux-source-*.tar.xz"))
    if not tarballs:
        raise UnhealthyError(f"{source} has no linux-source-*.tar.xz in it: {cache.advice()}")
    return tarballs[0]


def unpack(tarball: Path, folder: Path, steps: BuildSteps) -> Version:
    """Unpack the source into a new `folder`; return its version. Raises UnhealthyError if it cannot be used."""
    folder.mkdir()
    what = "unpacking the kernel source"
    argv = [
        *("tar", "--extract", f"--file={tarball}", "--use-compress-program=xz --threads=0"),
        *("--strip-components=1", f"--directory={folder}", f"--checkpoint={_RECORDS}"),
        *(f"--exclude=*/{pattern}" for pattern in _LEFT_OUT),
    ]
    try:
        with ProgressLine(what) as progress:
            size = _size(steps.run(what, ["xz", "--robot", "--list", str(tarball)]))
            steps.run(what, argv, lambda line: progress.show(_done(line) / size))
    except StepError as error:
        raise _damaged(tarball, error) from None
    missing = [name for name in _NEEDED if not (folder / name).is_file()]
    if missing:
        raise UnhealthyError(f"{tarball} is not a Linux source for x86-64: it has no {missing[0]}; {cache.advice()}")
    version = _version(folder / "Makefile")
    if version is None:
        raise UnhealthyError(f"{tarball} is not a Linux source: its Makefile has no version; {cache.advice()}")
    return version


def _size(listed: str) -> int:
    """Uncompressed bytes of a file, from the line of totals that xz prints."""
    totals = re.search(r"^totals\t\d+\t\d+\t\d+\t(\d+)", listed, re.MULTILINE)
    return int(totals[1]) if totals else sys.maxsize


def _done(line: str) -> int:
    """Bytes that tar has read, from a line of its checkpoints."""
    checkpoint = re.search(r"Read checkpoint (\d+)", line)
    return int(checkpoint[1]) * _RECORD_BYTES if checkpoint else 0


def _version(makefile: Path) -> Version | None:
    numbers = dict(re.findall(r"^(VERSION|PATCHLEVEL|SUBLEVEL) *= *(\d+)$", makefile.read_text(), re.MULTILINE))
    if len(numbers) != 3:
        return None
    return Version(*(int(numbers[name]) for name in ("VERSION", "PATCHLEVEL", "SUBLEVEL")))


def _damaged(source: Path, error: StepError) -> UnhealthyError:
    return UnhealthyError(f"{source} is cut or damaged ({error.reason}): get it again, or {cache.advice()}")


SUITES = ("trixie-backports", "sid")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
ROOM_BYTES = 500_000_000  # lists of two suites, a package and its unpacked content
_PACKAGE = re.compile(r"linux-source-\d+\.\d+")
_KEY_TROUBLE = re.compile(r"NO_PUBKEY|EXPKEYSIG|BADSIG|not signed|signatures? ", re.IGNORECASE)
_COMPLAINT = re.compile(r"(?:[EW]|Err:\d+): *(.+)")
_RELEASE = re.compile(r"^'(.+/)dists/(.+)/InRelease'", re.MULTILINE)
_TOOLS = ("apt-get", "apt-cache", "dpkg-deb")
# The machine's settings stay in force because of its proxies, without its hooks, which are for its own packages.
_CONFIGURATION = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::State "{folder}/state";
Dir::State::status "/dev/null";
Dir::Cache "{folder}/cache";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{folder}/sources";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
APT::Sandbox::User "root";
Acquire::Languages "none";
"""
_SOURCE = """\
Types: deb
URIs: {mirrors}
Suites: {suites}
Components: main
Architectures: amd64
Targets: Packages
Signed-By: {keyring}
"""


class SourceOffer(msgspec.Struct, frozen=True):
    """A kernel source package that the archive has, such as linux-source-7.3 in version 7.3.4-1~bpo13+1."""

    package: str
    release: str

    @property
    def version(self) -> Version | None:
        """Linux' own version."""
        return cache.version_in(self.release)


def fetched(root: Path) -> list[Path]:
    """The sources that have been fetched into the cache `root`, each in a folder named by its package's version."""
    return sorted((root / "sources").glob("*/linux-source-*.tar.xz"))


def fetch(root: Path) -> Path:
    """Fetch the best source that the archive has into the cache `root`. Raises UnhealthyError."""
    require_tools()
    if shutil.disk_usage(root).free < ROOM_BYTES:
        raise no_space(root, f"fetching a kernel source of {ROOM_BYTES >> 20} MiB")
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=root) as scratch:
        apt = Apt(Path(scratch), mirrors())
        apt.update()
        offer = choose(apt.offers())
        if offer is None:
            raise UnhealthyError(
                f"no kernel source of {OLDEST.major}.{OLDEST.minor} or later in {apt.where}: {cache.advice()}"
            )
        package = apt.download(offer)
        home = root / "sources" / offer.release
        return _keep(tarball_of(package, Path(scratch) / "unpacked", BuildSteps(Path(scratch), {})), home)


def require_tools() -> None:
    """Raises UnhealthyError if this machine lacks a tool or key to fetch and check packages."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing or not KEYRING.is_file():
        lacking = missing[0] if missing else f"{KEYRING} (package debian-archive-keyring)"
        raise UnhealthyError(f"cannot fetch a kernel source without {lacking}: install it, or {cache.advice()}")


def where(mirrors: Sequence[str]) -> str:
    """The suites and mirrors that are searched, for messages."""
    return f"{', '.join(SUITES)} of {' '.join(mirrors)}"


def _keep(tarball: Path, home: Path) -> Path:
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(exist_ok=True)
    tarball.parent.rename(home)
    return home / tarball.name


def choose(offers: Iterable[SourceOffer]) -> SourceOffer | None:
    """The newest that has been tested, else the newest; None where all are too old."""
    fit = [(cache.preference(offer.version), offer) for offer in offers if offer.version and offer.version >= OLDEST]
    return max(fit, key=lambda ranked: ranked[0])[1] if fit else None


def mirrors() -> list[str]:
    """The addresses of Debian's archive in the machine's own apt sources. Raises UnhealthyError where there is none.

    apt knows an archive's owner from the lists that the machine has fetched. Without lists all sources are used: the
    keyring refuses those that others have signed.
    """
    named = _RELEASE.findall(_output("apt-get", "update", "--print-uris"))
    owners = map(str.split, _output("apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN)").splitlines())
    of_debian = {row[0] for row in owners if row[1:] == ["Debian"]}
    archives = list(dict.fromkeys(address for address, suite in named if "security" not in suite))
    chosen = [address for address in archives if address in of_debian] or archives
    if not chosen:
        raise UnhealthyError(f"apt's sources on this machine name no Debian archive to fetch from: {cache.advice()}")
    return chosen


class Apt:
    """apt with all its files in `folder`, for the newer suites of `mirrors`."""

    def __init__(self, folder: Path, mirrors: Sequence[str]) -> None:
        self.where = where(mirrors)
        self._folder = folder
        self._configuration = folder / "apt.conf"
        for name in ("state/lists/partial", "cache/archives/partial", "sources", "unpacked"):
            (folder / name).mkdir(parents=True)
        self._configuration.write_text(_CONFIGURATION.format(folder=folder))
        entry = _SOURCE.format(mirrors=" ".join(mirrors), suites=" ".join(SUITES), keyring=KEYRING)
        (folder / "sources" / "newer.sources").write_text(entry)

    def update(self) -> None:
        """Fetch the package lists. A suite that no longer exists is left out. Raises UnhealthyError if none is left."""
        output = self._run("fetching package lists", "apt-get", "update")
        if not self._names():
            raise self._trouble(output)

    def offers(self) -> list[SourceOffer]:
        """The kernel source packages in the lists."""
        names = self._names()
        lines = self._ask("apt-cache", "madison", *names).splitlines() if names else []
        rows = [[cell.strip() for cell in line.split("|")] for line in lines]
        return [SourceOffer(row[0], row[1]) for row in rows if len(row) == 3]

    def download(self, offer: SourceOffer) -> Path:
        """Fetch a package."""
        what = f"fetching {offer.package} {offer.release}"
        output = self._run(what, "apt-get", "download", f"{offer.package}={offer.release}")
        packages = list(self._folder.glob(f"{offer.package}_*.deb"))
        if not packages:
            raise self._trouble(output)
        return packages[0]

    def _names(self) -> list[str]:
        output = self._ask("apt-cache", "pkgnames", "linux-source-")
        return sorted(name for name in output.split() if _PACKAGE.fullmatch(name))

    def _ask(self, *argv: str) -> str:
        return _output(*argv, f"--config-file={self._configuration}")

    def _run(self, what: str, *argv: str) -> list[str]:
        """Run apt-get, with its progress shown as ours; return its complaints."""
        reader, writer = os.pipe()
        options = [f"--config-file={self._configuration}", "-q", "-o", f"APT::Status-Fd={writer}"]
        with tempfile.TemporaryFile("w+") as complaints, os.fdopen(reader) as status, ProgressLine(what) as progress:
            with subprocess.Popen(
                [*argv, *options],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=complaints,
                stderr=complaints,
                env=_environment(),
                pass_fds=[writer],
            ):
                os.close(writer)
                for line in status:
                    progress.show(_fraction(line))
            complaints.seek(0)
            return [complaint[1] for complaint in map(_COMPLAINT.match, complaints) if complaint]

    def _trouble(self, output: list[str]) -> UnhealthyError:
        """The error to raise when apt has not fetched what was asked for, from its complaints."""
        text = "\n".join(output)
        if FULL in text:
            return no_space(self._folder.parent, "fetching a kernel source")
        if _KEY_TROUBLE.search(text):
            return UnhealthyError(
                f"{self.where} is not signed by a key of {KEYRING}: update the package debian-archive-keyring, "
                f"or {cache.advice()}"
            )
        why = output[0] if output else "apt-get does not say why"
        return UnhealthyError(f"cannot fetch a kernel source from {self.where} ({why}): {cache.advice()}")


def _output(*argv: str) -> str:
    return subprocess.run(argv, env=_environment(), capture_output=True, text=True, check=False).stdout


def _environment() -> dict[str, str]:
    return os.environ | {"LC_ALL": "C"}


def _fraction(status: str) -> float:
    """The progress of apt, 0 to 1, from a line of its status (`dlstatus:NUMBER:PERCENT:TEXT`)."""
    progress = re.match(r"dlstatus:\d+:([\d.]+):", status)
    return float(progress[1]) / 100 if progress else 0.0


INSTALLED = Path("/usr/src")
_KINDS = (".tar.xz", ".deb")


def at_hand(root: Path, installed: Path = INSTALLED) -> Path | None:
    """The source that needs no network: given, installed, or fetched into the cache `root` before; None for none.

    Raises UsageError for a given one that does not exist or whose name is not that of a source.
    """
    chosen = cache.given_source()
    if chosen:
        return _checked(chosen)
    by_package = {path: cache.version_in(path.name) for path in installed.glob("linux-source-*.tar.xz")}
    by_download = {path: cache.version_in(path.parent.name) for path in fetched(root)}
    return best(by_package.items()) or best(by_download.items())


def best(sources: Iterable[tuple[Path, Version | None]]) -> Path | None:
    """The best of these sources, given with their versions; None where all are too old."""
    fit = [(cache.preference(version), path) for path, version in sources if version and version >= OLDEST]
    return max(fit)[1] if fit else None


def obtain(root: Path) -> Path:
    """The source to build from, fetched into the cache `root` where none is at hand. Raises UnhealthyError."""
    return at_hand(root) or fetch(root)


def _checked(path: Path) -> Path:
    if not path.name.endswith(_KINDS):
        raise UsageError(
            f"{cache.SOURCE_VARIABLE}={path}: its name ends in none of {', '.join(_KINDS)}; {cache.advice()}"
        )
    if not path.is_file():
        raise UsageError(f"{cache.SOURCE_VARIABLE}={path}: no such file; correct or unset it")
    version = cache.version_in(path.name)
    if version:
        cache.refuse_old(version, str(path))
    return path
