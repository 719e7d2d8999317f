"""The cabling files that can be read, recognised by their content: the one place where a reader is registered."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

from c4bench.errors import UsageError
from c4bench.files import read_bounded
from c4bench.foreign_text import file_name
from c4bench.inventory.cabling import containerlab, graphviz, ibnetdiscover, listing, nccl, slurm
from c4bench.inventory.cabling.wiring import Wiring

_HEAD = 65_536


class _Format(NamedTuple):
    """A format, whether a text begins as one, and what its text states."""

    name: str
    recognises: Callable[[str], object]
    read: Callable[[str], Wiring]


def _refused(text: str) -> NoReturn:
    nccl.refuse(text)
    raise AssertionError


_FORMATS = (
    _Format("NCCL topology", nccl.RECOGNISED.search, _refused),
    _Format("ibnetdiscover", ibnetdiscover.RECOGNISED.search, ibnetdiscover.read),
    _Format("Slurm topology", slurm.RECOGNISED.search, slurm.read),
    _Format("Slurm topology.yaml", slurm.recognised_yaml, slurm.read_yaml),
    _Format("containerlab", containerlab.recognised, containerlab.read),
    _Format("Graphviz", graphviz.RECOGNISED.search, graphviz.read),
    _Format("list of cables (JSON)", listing.recognised_json, listing.read_json),
    _Format("list of cables (CSV)", listing.recognised_csv, listing.read_csv),
)


def recognise(head: bytes) -> str | None:
    """What kind of cabling file begins so; None for any other file."""
    found = _format_of(head[:_HEAD].decode(errors="replace"))
    return found.name if found else None


def read(path: Path) -> Wiring:
    """The cables that a file lists. Raises UsageError: file, place, reason."""
    return parse(read_bounded(path), path)


def parse(content: bytes, path: Path) -> Wiring:
    """The cables in the content of the file `path`. Raises UsageError."""
    text = content.decode(errors="replace")
    found = _format_of(text[:_HEAD])
    if not text.strip():
        raise UsageError(f"{file_name(path)}: it is empty")
    if found is None:
        known = ", ".join(one.name for one in _FORMATS[1:])
        raise UsageError(f"{file_name(path)}: it is of no known format of cabling; known are {known}")
    try:
        wiring = found.read(text)
    except UsageError as error:
        raise UsageError(f"{file_name(path)}: {error}") from None
    if not wiring.wires:
        raise UsageError(f"{file_name(path)}: {found.name}, but it lists no cables")
    return wiring


def _format_of(head: str) -> _Format | None:
    return next((one for one in _FORMATS if one.recognises(head)), None)
