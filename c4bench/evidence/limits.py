"""The bounds of all that is read from strangers, and the only ways in which their bytes become data."""

import codecs
import io
import json
import re
import zlib
from pathlib import Path

from c4bench.budget import FILE
from c4bench.decoding import DecodingError, decoding, from_json
from c4bench.errors import UsageError
from c4bench.files import read_bounded
from c4bench.foreign_text import file_name, one_line

MOST_BYTES = FILE.bytes  # of a file, also after decompression
MOST_FILES = 200_000  # and folders
MOST_VALUES = FILE.records  # numbers, texts, lists and objects in a file
MOST_OBJECTS = FILE.names
LONGEST_TEXT = 8 << 20  # bytes; the text of the ranks of a job of a million
MOST_BITS = 64  # of an integer
MOST_LINES = 1_000_000  # of a text that is judged line by line
MOST_RANKS = FILE.names
LONGEST_NAME = 80  # characters
_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"


class UnreadableError(Exception):
    """Bytes that cannot be used: why, and at which `place` of the file."""

    def __init__(self, reason: str, place: str = "") -> None:
        self.reason, self.place = reason, place
        super().__init__(f"{place}: {reason}" if place else reason)


class NothingToldError(UnreadableError):
    """Text that has some words of a format, and no line that tells anything."""


class TooLongError(UnreadableError):
    """The decompressed bytes of a file are more than may be held at once."""


def read_bytes(path: Path) -> bytes:
    """The bytes of a regular file, decompressed if it is gzip. Raises UnreadableError."""
    if path.is_fifo():
        raise UnreadableError("it is a pipe; give --follow")
    try:
        data = read_bounded(path)
    except UsageError as error:
        raise UnreadableError(str(error).removeprefix(f"{file_name(path)}: ")) from None
    if not data:
        raise UnreadableError("it is empty")
    return unpacked(data)


def unpacked(data: bytes) -> bytes:
    """The bytes themselves, decompressed if they are gzip, and as UTF-8 if they begin with a mark of UTF-16 or UTF-8.

    Raises UnreadableError.
    """
    data = gunzip(data) if data.startswith(_GZIP) else data
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace").encode()
    return data.removeprefix(codecs.BOM_UTF8)


def gunzip(data: bytes, most: int | None = None) -> bytes:
    """The content of gzip data, of `most` bytes (a file's); what is left if it is cut. Raises UnreadableError."""
    most = MOST_BYTES if most is None else most
    decoder, out = zlib.decompressobj(zlib.MAX_WBITS | 16), io.BytesIO()
    try:
        for at in range(0, len(data), _CHUNK):
            todo = data[at : at + _CHUNK]
            while todo:
                out.write(decoder.decompress(todo, _CHUNK))
                if out.tell() > most:
                    raise TooLongError(f"it has more than {most >> 20} MiB when decompressed")
                todo = decoder.unconsumed_tail
    except zlib.error as error:
        if not out.tell():
            raise UnreadableError(f"it cannot be decompressed: {error}") from None
    return out.getvalue()


def json_data(data: bytes) -> object:
    """The plain data in JSON text; anything may have any type. Raises UnreadableError."""
    # No text has more objects or values than bytes.
    if len(data) > MOST_OBJECTS and _has_too_many(data):
        raise UnreadableError(f"it has more than {MOST_OBJECTS} objects or {MOST_VALUES} values")
    try:
        return from_json(data, object)
    except DecodingError as error:
        raise UnreadableError(f"its JSON text cannot be read: {error}") from None


def json_data_or_cut(data: bytes) -> tuple[object, str]:
    """The plain data in JSON text, of text that is cut all up to its last whole object, and what is missing.

    Raises UnreadableError.
    """
    try:
        return json_data(data), ""
    except UnreadableError as error:
        whole = _closed(data) if error.reason.endswith("truncated") else b""
        if not whole:
            raise
        return json_data(whole), f"it is cut: what follows byte {len(whole)} is missing or not whole"


_MARKS = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]')
_ENDS = {b"{": b"}", b"[": b"]"}


def _closed(data: bytes) -> bytes:
    """JSON text up to the last object in it that is whole, with all closed that is open there; empty if none is."""
    still, end, after = list[bytes](), 0, b""
    for found in _MARKS.finditer(data):
        mark = found[0]
        if mark in _ENDS:
            still.append(_ENDS[mark])
        elif still and mark == still[-1]:
            still.pop()
            if mark == b"}" and still:
                end, after = found.end(), b"".join(reversed(still))
    return data[:end] + after if end else b""


def json_objects(data: bytes) -> tuple[list[object], str]:
    """The plain data in JSON texts that stand one after the other, and why the rest cannot be read (empty: it can).

    Raises UnreadableError if none can.
    """
    if len(data) > MOST_OBJECTS and _has_too_many(data):
        raise UnreadableError(f"it has more than {MOST_OBJECTS} objects or {MOST_VALUES} values")
    found: list[object] = []
    try:
        with decoding():
            written, decoder, at = data.decode().strip(), json.JSONDecoder(), 0
            while at < len(written):
                value, at = decoder.raw_decode(written, at)
                found.append(value)
                while written[at : at + 1].isspace():
                    at += 1
    except DecodingError as error:
        if not found:
            raise UnreadableError(f"its JSON text cannot be read: {error}") from None
        return found, str(error)
    return found, ""


def _has_too_many(data: bytes) -> bool:
    return data.count(b"{") > MOST_OBJECTS or data.count(b",") + data.count(b"[") > MOST_VALUES


def short_name(name: str) -> str:
    """A name out of a stranger's file, fit to be printed: short, and without control characters."""
    return one_line(name, LONGEST_NAME)


def short_words(words: str) -> str:
    """What a stranger's file says of an error, fit to be printed: not longer than a few names, on one line."""
    return one_line(words, 4 * LONGEST_NAME)
