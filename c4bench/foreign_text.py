"""Text that a host, a rank, a switch or a file brought, made fit for where it is written. Nothing else does this.

A terminal obeys control characters, a log is read line by line, and Markdown and Ansible obey their own marks. HTML is
escaped by the templates (`report/html.py`), JSON by its encoder.
"""

import json
import re
from pathlib import PurePath

LONGEST = 500
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# What Markdown obeys anywhere, at the beginning of a block, and in addresses that become links by themselves.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#!|<>&~@]|^[+-](?=[\s=-]|$)|^=(?==*\s*$)|:(?=//)|(?<=www)\.)", re.IGNORECASE)
_NUMBERED = re.compile(r"^(\d+)\.(?=\s|$)")
_TICKS = re.compile("`+")


def one_line(text: object, longest: int = LONGEST) -> str:
    r"""`text` on one line of at most about `longest` characters: what does not print is written as its escape (`\x1b`).

    Control characters, line and paragraph separators, and marks that change the direction of text do not print, nor do
    halves of surrogate pairs, which stand for bytes of a file name that are no UTF-8.
    """
    given = str(text)
    shown = given[:longest]
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else _escape(char) for char in shown)
    return shown + ("..." if len(given) > longest else "")


def json_line(encoded: bytes) -> str:
    """One line of JSON as it may be printed: what does not print is escaped within its strings, as JSON does."""
    text = encoded.decode()
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def lines(text: object, longest: int = 100_000) -> str:
    """As `one_line`, but line breaks and tabs stay: for tracebacks, and for output of commands."""
    given = str(text)
    shown = "".join(char if char.isprintable() or char in "\n\t" else _escape(char) for char in given[:longest])
    return shown + ("..." if len(given) > longest else "")


def file_name(path: PurePath | str) -> str:
    """A path as it is printed."""
    return one_line(path, 4096)


def markdown(text: object, longest: int = LONGEST) -> str:
    """`text` as Markdown that shows just these characters: no link, image, code, table cell or HTML begins in it."""
    return _NUMBERED.sub(r"\1\\.", _MARKDOWN.sub(r"\\\1", one_line(text, longest).strip()))


def markdown_code(text: object, longest: int = LONGEST) -> str:
    """`text` as a Markdown code span, which nothing in it ends. In a table, its pipes need a backslash too."""
    shown = one_line(text, longest).strip() or " "
    ticks = "`" * (1 + max(map(len, _TICKS.findall(shown)), default=0))
    padding = " " if "`" in (shown[0], shown[-1]) else ""
    return f"{ticks}{padding}{shown}{padding}{ticks}"


def _escape(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
