"""Fetch a kernel source package from a newer suite of Debian's archive, as an ordinary user.

apt does it, with its own configuration, package lists and cache inside our cache: it checks the lists by the archive's
key, and the package by the lists. Nothing is installed, and the machine's package lists stay as they are.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.lab.machine.kernel import recipe
from c4bench.lab.machine.kernel.recipe import OLDEST, Version
from c4bench.lab.machine.kernel.steps import FULL, BuildSteps, ProgressLine, no_space
from c4bench.lab.machine.kernel.tree import tarball_of

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
        return recipe.parse(self.release)


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
                f"no kernel source of {OLDEST.major}.{OLDEST.minor} or later in {apt.where}: {recipe.advice()}"
            )
        package = apt.download(offer)
        home = root / "sources" / offer.release
        return _keep(tarball_of(package, Path(scratch) / "unpacked", BuildSteps(Path(scratch), {})), home)


def require_tools() -> None:
    """Raises UnhealthyError if this machine lacks a tool or key to fetch and check packages."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing or not KEYRING.is_file():
        lacking = missing[0] if missing else f"{KEYRING} (package debian-archive-keyring)"
        raise UnhealthyError(f"cannot fetch a kernel source without {lacking}: install it, or {recipe.advice()}")


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
    fit = [(recipe.preference(offer.version), offer) for offer in offers if offer.version and offer.version >= OLDEST]
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
        raise UnhealthyError(f"apt's sources on this machine name no Debian archive to fetch from: {recipe.advice()}")
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
                f"or {recipe.advice()}"
            )
        why = output[0] if output else "apt-get does not say why"
        return UnhealthyError(f"cannot fetch a kernel source from {self.where} ({why}): {recipe.advice()}")


def _output(*argv: str) -> str:
    return subprocess.run(argv, env=_environment(), capture_output=True, text=True, check=False).stdout


def _environment() -> dict[str, str]:
    return os.environ | {"LC_ALL": "C"}


def _fraction(status: str) -> float:
    """The progress of apt, 0 to 1, from a line of its status (`dlstatus:NUMBER:PERCENT:TEXT`)."""
    progress = re.match(r"dlstatus:\d+:([\d.]+):", status)
    return float(progress[1]) / 100 if progress else 0.0
