"""Make the bundle and certificates for playbooks/deploy.yml.

One tarball with all that an agent and its ranks need besides the host's Python, since hosts may be offline. It holds
c4bench and its dependencies, copied from our own environment, laid out as in a virtual environment, which deploy.yml
creates around it with the standard library's `venv` (docs/adr/0022). The compiled parts need our Python version and
machine; `bin/interpreter` refuses any other.
"""

import datetime
import gzip
import hashlib
import io
import os
import platform
import sys
import tarfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path, PurePath

import msgspec

import c4bench
from c4bench import extensions
from c4bench.attach import build as attach_build
from c4bench.deploy import authority
from c4bench.errors import UnhealthyError
from c4bench.inventory import Inventory
from c4bench.resources import resource

_CLOCKS_APART = datetime.timedelta(days=1)  # on a host whose clock is behind, the certificate must be valid already


def prepare(inventory: Inventory, directory: Path) -> dict[str, object]:
    """Make the bundle and missing certificates in `directory`, and return the variables for deploy.yml.

    Raises UnhealthyError when a package that agents need, or the authority's key, is missing here.
    """
    trust, names = directory / "trust", [host.name for host in inventory.hosts]
    make = authority.issue if (trust / "ca.pem").exists() else authority.establish
    make(trust, names, valid_from())
    return {"c4_trust": str(trust.resolve()), "c4_bundle": str(build(directory).resolve())}


def valid_from() -> datetime.datetime:
    """From when on new certificates are valid."""
    return datetime.datetime.now(datetime.UTC) - _CLOCKS_APART


REQUIRED = ("msgspec", "websockets", "PyYAML")
OPTIONAL = (
    "numpy",
    "ml_dtypes",
    "autograd",
    "threadpoolctl",
    "nats-py",  # agents with a bus; others do without
)  # ranks compute with them; a host without ranks does without
_EXCLUDED_FOLDERS = {"__pycache__", "tests", "include", "f2py", "distutils", "_examples"}
_EXCLUDED_SUFFIXES = {".pyi", ".pyc", ".a", ".pxd", ".typed"}
_EXCLUDED_FILES = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
# Higher levels take twice the time and more, for a twelfth of the size.
_LEVEL = 3
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = PurePath(f"lib/python{_VERSION}/site-packages")  # in the tarball, and in the agent's environment
_INTERPRETER = f"""\
#!/bin/sh
# Prints the path of the Python that these packages need.
command -v python{_VERSION} || {{
  echo "c4bench: this agent is for python{_VERSION}; install it, or prepare on a machine with this host's version" >&2
  exit 3
}}
[ "$(uname -m)" = {platform.machine()} ] || {{
  echo "c4bench: this agent is for {platform.machine()}; prepare on a machine of this kind" >&2
  exit 3
}}
"""
# Runs as root by a sudo rule: of the caller's environment it keeps only who that is, and the SSH connection.
_INJECTOR = """\
#!/bin/sh
# c4bench's fault injector: the one command here that needs root (see playbooks/deploy.yml).
exec /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \\
  SUDO_UID="$SUDO_UID" SUDO_USER="$SUDO_USER" PKEXEC_UID="$PKEXEC_UID" SSH_CONNECTION="$SSH_CONNECTION" \\
  "${0%/*}/python" -I -m c4bench.inject "$@"
"""


class BundleEntry(msgspec.Struct, frozen=True):
    """One file of the bundle, or a symbolic link there."""

    name: str
    content: bytes
    executable: bool
    link: str = ""


def build(cache: Path, *, ranks: bool = True) -> Path:
    """Build the bundle in `cache`, named by the hash of its content, unless it is there already.

    Without `ranks` it omits the packages that only ranks use, which are most of its size. Raises UnhealthyError when a
    package is missing from our own environment.
    """
    entries = sorted(_entries((*REQUIRED, *OPTIONAL) if ranks else REQUIRED), key=lambda entry: entry.name)
    target = cache / f"agent-{_digest(entries)}.tar.gz"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_suffix(f".{os.getpid()}")
        _write(unfinished, entries)
        unfinished.rename(target)
    return target


def _entries(packages: Iterable[str]) -> Iterator[BundleEntry]:
    yield BundleEntry("bin/interpreter", _INTERPRETER.encode(), executable=True)
    yield BundleEntry("bin/inject", _INJECTOR.encode(), executable=True)
    package = Path(c4bench.__file__).parent
    yield from _packed(package.parent, (path.relative_to(package.parent) for path in package.rglob("*")))
    yield from _data("faults")
    yield from _preloaded()
    for name in packages:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in REQUIRED:
                raise UnhealthyError(f"{name} is not installed here, and agents need it: pip install {name}") from None
            continue
        yield from _distribution(distribution)
    for distribution in extensions.distributions():
        if '"editable": true' in (distribution.read_text("direct_url.json") or ""):
            raise UnhealthyError(f"{distribution.name} is installed as editable; hosts need it installed: pip install")
        yield from _distribution(distribution)


def _distribution(distribution: metadata.Distribution) -> Iterator[BundleEntry]:
    if distribution.files is None:
        raise UnhealthyError(f"{distribution.name} here has no list of files; install it with pip")
    yield from _packed(Path(str(distribution.locate_file(""))), distribution.files)


def _preloaded() -> Iterator[BundleEntry]:
    """What attaches programs of others, where an agent's environment has it; without what is not built.

    The library in libibverbs' place comes with the link that shows which one it is for.
    """
    for name, path in attach_build.for_hosts().items():
        link = str(path.readlink()) if path.is_symlink() else ""
        yield BundleEntry(name, b"" if link else path.read_bytes(), executable=False, link=link)


def _data(folder: str) -> Iterator[BundleEntry]:
    """Data files at the top of a checkout, under the paths they have in an installed package."""
    for path in sorted(resource(folder).iterdir()):
        name = f"{PACKAGES}/c4bench/data/{folder}/{path.name}"
        yield BundleEntry(name, path.read_bytes(), executable=False)


def _packed(root: Path, paths: Iterable[PurePath]) -> Iterator[BundleEntry]:
    for path in paths:
        source = root / path
        if _included(path) and source.is_file():
            yield BundleEntry(
                name=str(PACKAGES / path),
                content=source.read_bytes(),
                executable=os.access(source, os.X_OK),
            )


def _included(path: PurePath) -> bool:
    return not (
        path.parts[0] == ".."  # console scripts, outside the packages
        or _EXCLUDED_FOLDERS & set(path.parts)
        or path.suffix in _EXCLUDED_SUFFIXES
        or path.name in _EXCLUDED_FILES
    )


def _digest(entries: Iterable[BundleEntry]) -> str:
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(f"{entry.name}\0{entry.executable}\0{entry.link}\0{len(entry.content)}\0".encode())
        digest.update(entry.content)
    return digest.hexdigest()[:12]


def _write(path: Path, entries: Iterable[BundleEntry]) -> None:
    """Write the same bytes for the same entries: without the file's name and without times."""
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for entry in entries:
            member = tarfile.TarInfo(entry.name)
            member.size = len(entry.content)
            member.mode = 0o755 if entry.executable else 0o644
            if entry.link:
                member.type, member.linkname = tarfile.SYMTYPE, entry.link
            tar.addfile(member, io.BytesIO(entry.content))
