"""Saved outputs: files, folders and archives, as the texts of commands, each with its device and its time order.

Nothing of an archive is written to disk. What is read is bounded: strangers made these files.
"""

import bz2
import gzip
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from c4bench.budget import SAVED_OUTPUTS, Account, OverBudgetError
from c4bench.decoding import whole_number
from c4bench.errors import UsageError
from c4bench.files import read_bounded
from c4bench.foreign_text import file_name

MOST_TEXT_BYTES = 32 << 20
_HEAD_BYTES = 512
_TAR_AT, _TAR_BLOCK_BYTES = 257, 512
_COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ\x00", b"BZh")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)")
_ROOTS = (
    re.compile(r"sosreport-(?P<host>.+?)-\d{4}-\d{2}-\d{2}-\w+.*"),
    re.compile(r"sosreport-(?P<host>[^-]+(?:-[^-]+)*?)(?:-\w{7,})?"),
    re.compile(r"sonic_dump_(?P<host>.+)_\d{8}_\d{6}.*"),
)
# Folders that are inside the folder of one device.
_INSIDE = {"sos_commands", "dump", "log", "etc", "proc", "var", "sos_logs"}
_EXTENSION = re.compile(r"\.(?:txt|log|json0?|out|csv|xml|gz|xz|bz2|tar|tgz|dump|clean|kv)$", re.IGNORECASE)
_BETWEEN = re.compile(
    r"[_\s.@:=+]+|-(?=before|after|first|second|old|new|pre|post|start|end\b|\d{4,}$)|(?<=before|after_)-"
)
_FIRST = {"before", "first", "old", "pre", "start", "begin", "prev", "previous", "baseline"}
_LAST = {"after", "second", "new", "post", "end", "last", "now", "latest", "later"}
_DATE = re.compile(
    r"\d{4}-?\d{2}-?\d{2}(?:T?\d{2}[:-]?\d{2}(?:[:-]?\d{2})?Z?)?|\d{1,2}[:h]\d{2}(?:[:m]\d{2})?|(?:t|run|reading|r)?\d{1,14}"
)
_INTERFACE = re.compile(
    r"(?:mlx\d_\d+|(?:en[opsxP]|eth|ib|bond|swp|Ethernet|hsn|rdma|roce|p\d+p|PortChannel)[A-Za-z0-9/]*\d[A-Za-z0-9/]*|\d{4}[:.][0-9a-f]{2}[:.]00\.\d)"
)
_HOST = re.compile(r"(?=[^\d]*\d|.*-)[A-Za-z][A-Za-z0-9-]*(?:\.[A-Za-z0-9-]+)*")
_TOOLS = (
    "rdma", "ibv_devinfo", "ibstat", "show_gids", "ethtool", "mlxlink", "mlnx_qos", "ip", "lldpctl", "lldpcli",
    "networkctl", "show", "portstat", "aclshow", "pfcwd", "ecnconfig", "pfcstat", "queuestat", "sonic-cfggen",
    "ibnetdiscover", "iblinkinfo", "ibqueryerrors", "perfquery", "ibdiagnet", "nvidia-smi", "dmesg", "sysctl",
)  # fmt: skip
# Words in names of files that look like hosts' names.
_NO_HOSTS = re.compile(
    r"(?:nvidia-smi|sonic-cfggen|running-config|startup-config|lldp\w*|json0|ipv[46]|pci\w*|\w*counters?\d*|"
    r"readings?\d*|fec-stats)",
    re.IGNORECASE,
)
_PROMPT = re.compile(
    r"^(?:\(\w[^)]{0,40}\) ?)?"
    r"(?:\[[\w.-]+@(?P<a>[\w.-]+)[^\]\n]{0,200}\][#$%]|[\w.-]+@(?P<b>[\w.-]+):[^#$\n]{0,200}[#$])\s*(?P<command>\S.*)$"
)
# As of EOS and NX-OS.
_SWITCH_PROMPT = re.compile(r"^(?P<a>[A-Za-z][\w.-]{0,63})(?:\([^)]{0,40}\))?[#>]\s?(?P<command>show\b.*)$")
# Headings with a host, an interface or a file: `=== gpu1 ===`, of dshbak and clush, of Ansible, of `tail -n +1 *`.
_BANNER = re.compile(r"^-{8,}\n(\S{1,200})(?: \(\d+\))?\n-{8,}\n", re.MULTILINE)
_TITLE = re.compile(
    r"^(?:==> (?P<file>\S{1,200}) <==|(?P<host>\S{1,200}) \| (?:CHANGED|SUCCESS|FAILED!?) \| rc=\d+ >>"
    r"|[=#*>-]{2,}[ \t]*(?P<name>[A-Za-z][\w.,\[\]-]{0,200}?):?[ \t]*[=#*<-]*)$"
)
# Words before each line: a host's name, of pdsh and clush; a time and a host, of syslog.
_PREFIX = re.compile(r"^(?P<host>[A-Za-z][\w.-]{0,63}):(?: (?P<line>.*)|[ \t]*)$")
_SYSLOG = re.compile(
    r"^(?:\d{4}-\d\d-\d\dT\S+|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?P<host>[\w.-]{1,64}) (?P<line>kernel: .*)$"
)
_LONGEST_TITLE = 250
_MOST_WITHOUT = 0.1  # of the lines in a text of several hosts
_DECORATED = re.compile(
    r"^[\s#$>+=*\[(-]+(?:sudo\s+)?(?P<command>(?:" + "|".join(map(re.escape, _TOOLS)) + r")\b[^\n]{0,200})$"
)


class Text(NamedTuple):
    """What one command printed: the file, its device and label, the port that it is about, its place in time.

    `label` is the file's name without what tells readings apart; readings of one label belong together.
    """

    file: str
    device: str
    label: str
    port: str
    order: tuple[int, ...]
    content: str


class LeftOut(NamedTuple):
    """A file that was not used, and why."""

    file: str
    reason: str


class _File(NamedTuple):
    """A file's name as it is shown, its place below what the user named, and its bytes."""

    shown: str
    place: tuple[str, ...]
    content: bytes


def texts(paths: Iterable[Path], left_out: list[LeftOut]) -> Iterator[Text]:
    """The texts in all files, also in folders and archives; what cannot be read is added to `left_out`."""
    account = Account("the saved outputs", SAVED_OUTPUTS)
    try:
        for path in paths:
            for file in _files(path, account, left_out):
                text = _decoded(file, left_out)
                if text is not None:
                    yield from _sections(file, text)
    except OverBudgetError as error:
        left_out.append(LeftOut(file_name(path), f"{error}; the rest is not read"))


def _files(path: Path, account: Account, left_out: list[LeftOut]) -> Iterator[_File]:
    if path.is_dir():
        seen = 0
        for folder, folders, names in os.walk(path):
            folders.sort()
            for name in sorted(names):
                seen += 1
                here = Path(folder) / name
                yield from _one(here, (path.resolve().name, *here.relative_to(path).parts), account, left_out)
        if not seen:
            left_out.append(LeftOut(file_name(path), "the folder has no files"))
    else:
        yield from _one(path, (path.resolve().parent.name, path.name), account, left_out)


def _one(path: Path, place: tuple[str, ...], account: Account, left_out: list[LeftOut]) -> Iterator[_File]:
    """A file, or the files in an archive."""
    account.spend(names=1)
    account.check_time()
    shown = file_name(path)
    try:
        if _is_archive(path):
            yield from _members(path, account, left_out)
            return
        content = read_bounded(path)
        account.spend(bytes=len(content))
        yield _File(shown, place, _unpacked(content, MOST_TEXT_BYTES))
    except UsageError as error:
        left_out.append(LeftOut(shown, str(error).removeprefix(f"{shown}: ")))
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        left_out.append(LeftOut(shown, f"it cannot be decompressed: {error}"))


def _is_archive(path: Path) -> bool:
    """Whether it is a tar file, compressed or not."""
    if not path.is_file():
        return False
    head = _first_bytes(path)
    if head.startswith(_COMPRESSED):
        try:
            head = _head_of(path, head)
        except (OSError, EOFError, zlib.error, lzma.LZMAError):
            return False
    return head[_TAR_AT : _TAR_AT + 5] == b"ustar"


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)


def _head_of(path: Path, compressed: bytes) -> bytes:
    """The beginning of what is in a compressed file."""
    if compressed.startswith(_COMPRESSED[0]):
        with gzip.open(path) as file:
            return file.read(_HEAD_BYTES)
    with lzma.open(path) if compressed.startswith(_COMPRESSED[1]) else bz2.open(path) as file:
        return file.read(_HEAD_BYTES)


def _members(path: Path, account: Account, left_out: list[LeftOut]) -> Iterator[_File]:
    """The regular files in an archive, in its order. One that is cut gives those before the cut."""
    shown = file_name(path)
    root = path.name.partition(".tar")[0].removesuffix(".tgz")
    plain = not _first_bytes(path).startswith(_COMPRESSED)
    if plain and path.stat().st_size % _TAR_BLOCK_BYTES:
        left_out.append(LeftOut(shown, "the archive is cut; what came before is used"))
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                account.spend(bytes=member.size, names=1)
                account.check_time()
                name = f"{shown}:{file_name(member.name)}"
                if not member.isreg():
                    continue
                if member.size > MOST_TEXT_BYTES:
                    left_out.append(LeftOut(name, f"it has more than {MOST_TEXT_BYTES >> 20} MiB"))
                    continue
                file = archive.extractfile(member)
                content = file.read() if file else b""
                if len(content) < member.size:
                    left_out.append(LeftOut(name, "the archive is cut in this file"))
                    continue
                place = PurePosixPath(member.name).parts
                place = place if len(place) > 1 and _root_host(place[0]) else (root, *place)
                try:
                    yield _File(name, place, _unpacked(content, MOST_TEXT_BYTES))
                except (OSError, EOFError, zlib.error, lzma.LZMAError, UsageError) as error:
                    left_out.append(LeftOut(name, f"it cannot be decompressed: {error}"))
    except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        left_out.append(LeftOut(shown, f"the archive is cut or damaged ({error}); what came before is used"))


def _unpacked(content: bytes, most: int) -> bytes:
    """The content, decompressed if it is compressed. Raises UsageError for more than `most` bytes."""
    if content.startswith(_COMPRESSED[0]):
        decoder = zlib.decompressobj(zlib.MAX_WBITS | 16)
        content = decoder.decompress(content, most + 1)
    elif content.startswith(_COMPRESSED[1]):
        content = lzma.LZMADecompressor(memlimit=256 << 20).decompress(content, most + 1)
    elif content.startswith(_COMPRESSED[2]):
        content = bz2.BZ2Decompressor().decompress(content, most + 1)
    if len(content) > most:
        raise UsageError(f"it has more than {most >> 20} MiB")
    return content


def _decoded(file: _File, left_out: list[LeftOut]) -> str | None:
    """The text of a file, without colours of a terminal; None if it is none."""
    content = file.content
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = content.decode("utf-16", errors="replace")
    elif b"\0" in content[: 1 << 16]:
        left_out.append(LeftOut(file.shown, "it is no text"))
        return None
    else:
        text = content.decode("utf-8-sig", errors="replace")
    if not text.strip():
        left_out.append(LeftOut(file.shown, "it is empty"))
        return None
    return _COLOURS.sub("", text).replace("\r\n", "\n")


def _sections(file: _File, text: str) -> Iterator[Text]:
    """The outputs of several commands in one file, which prompts or headings with the command stand before."""
    for titled, place, part in _titled(file.place, text):
        for host, own in _by_host(part):
            yield from _commands(file.shown, place, host or titled, own)


def _titled(place: tuple[str, ...], text: str) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """The parts of a text below headings with a host, an interface or a file, each with the host and its place."""
    host, here, lines = "", place, list[str]()
    for line in _BANNER.sub(r"=== \1 ===\n", text).splitlines(keepends=True):
        match = _TITLE.match(line.rstrip()) if len(line) <= _LONGEST_TITLE else None
        name = (match["host"] or match["name"] or "") if match else ""
        if not (match and (match["file"] or _names_something(name))):
            lines.append(line)
            continue
        yield host, here, "".join(lines)
        lines = []
        if match["file"]:
            host, here = "", (*place[:-1], *PurePosixPath(match["file"]).parts)
        elif _INTERFACE.fullmatch(name):
            here = (*place[:-1], f"{name} {place[-1]}")
        else:
            host, here = name, place
    yield host, here, "".join(lines)


def _names_something(name: str) -> bool:
    """Whether a heading is the name of an interface or a host, and not a word."""
    return bool(
        _INTERFACE.fullmatch(name) or (re.search(r"\d", name) and _HOST.fullmatch(re.sub(r"[\[\],]", "", name)))
    )


def _by_host(text: str) -> Iterator[tuple[str, str]]:
    """The lines of each host in a text whose lines begin with their host; else the text, with ""."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("pdsh@")]
    for pattern in (_SYSLOG, _PREFIX):
        own: dict[str, list[str]] = {}
        for line in lines:
            match = pattern.match(line)
            if (
                match
                and (pattern is _SYSLOG or _names_something(match["host"]))
                and not _INTERFACE.fullmatch(match["host"])
            ):
                own.setdefault(match["host"], []).append(match["line"] or "")
        if own and sum(map(len, own.values())) >= (1 - _MOST_WITHOUT) * len(lines):
            yield from ((host, "\n".join(part) + "\n") for host, part in own.items())
            return
    yield "", text


def _commands(shown: str, place: tuple[str, ...], named: str, text: str) -> Iterator[Text]:
    """The outputs of several commands in a text, which prompts or headings with the command stand before."""
    device, label, port, order = _named(place)
    device = named or device
    found: list[tuple[str, str, list[str]]] = [("", "", [])]
    for line in text.splitlines(keepends=True):
        bare = line.rstrip("\n")
        match = _PROMPT.match(bare) or _SWITCH_PROMPT.match(bare) or _DECORATED.match(bare)
        if match and not match["command"].endswith("{"):
            host = next(
                (name for name in (match.groupdict().get("a"), match.groupdict().get("b")) if name), found[-1][0]
            )
            found.append((host, match["command"], []))
        else:
            found[-1][2].append(line)
    for number, (host, command, body) in enumerate(found):
        content = "".join(body)
        if content.strip():
            about = _INTERFACE.search(command)
            own = about[0] if about else port
            yield Text(shown, host or device, label, own, (*order, number) if len(found) > 1 else order, content)


def _named(place: tuple[str, ...]) -> tuple[str, str, str, tuple[int, ...]]:
    """The device, the label, the port and the place in time that the names of a file and its folders tell."""
    *folders, name = place
    stem = name
    while shorter := _EXTENSION.sub("", stem):
        if shorter == stem:
            break
        stem = shorter
    order: list[int] = []
    kept = [folder for folder in folders if not _is_order(folder, order)]
    port = _INTERFACE.search(stem)
    bare = stem.replace(port[0], " ") if port else stem
    words = [word for word in _BETWEEN.split(bare) if word and not _is_order(word, order)]
    hosts = [word for word in words if _HOST.fullmatch(word) and not _NO_HOSTS.fullmatch(word)]
    label = " ".join([*(word for word in words), *((port[0],) if port else ())])
    return hosts[0] if hosts else _device(kept), label, port[0] if port else "", tuple(order)


def _is_order(word: str, order: list[int]) -> bool:
    """Whether a word tells readings apart, which is added to `order`."""
    if word.lower() in _FIRST | _LAST:
        order.append(0 if word.lower() in _FIRST else 1)
        return True
    if _DATE.fullmatch(word):
        digits = re.sub(r"\D", "", word)
        order.append(whole_number(digits[:18]))
        return True
    return False


def _device(folders: list[str]) -> str:
    """The folder of a device: that of a report, the one above folders that are inside one, else the innermost."""
    for folder in folders:
        if host := _root_host(folder):
            return host
    for number, folder in enumerate(folders):
        if number and folder in _INSIDE:
            return folders[number - 1]
    return folders[-1] if folders else ""


def _root_host(folder: str) -> str:
    """The host in the name of a report's folder, "" if it is none."""
    return next((match["host"] for pattern in _ROOTS if (match := pattern.fullmatch(folder))), "")
