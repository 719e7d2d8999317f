"""Parts of documents that commands write: what is between `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""

from pathlib import Path
from typing import NamedTuple

from c4bench.errors import UsageError
from c4bench.resources import resource

_STYLES = ("colours.css", "lines.css")


class Frame(NamedTuple):
    """A document without a generated part: the text up to its first marker, and from its last one on."""

    before: str
    after: str

    def filled(self, *paragraphs: str) -> str:
        """The document with these paragraphs between the markers."""
        return "\n\n".join([self.before, *paragraphs, self.after])


def stylesheet() -> str:
    """The style of a figure in a file of its own, as on the report's page."""
    return "".join(resource("reports", "templates", name).read_text() for name in _STYLES)


def markers(name: str) -> tuple[str, str]:
    """The lines that begin and end the part."""
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def frame(document: Path, name: str) -> Frame:
    """What surrounds the part in `document`. Raises UsageError if the document cannot be read or lacks a marker."""
    begin, end = markers(name)
    try:
        text = document.read_text()
    except OSError as error:
        raise UsageError(f"{document} cannot be read: {error.strerror}") from None
    for marker in (begin, end):
        if text.count(marker) != 1:
            raise UsageError(f"{document} has {marker} {text.count(marker)} times; put it there once")
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise UsageError(f"{document} has {end} before {begin}; swap them")
    return Frame(before + begin, end + after)
