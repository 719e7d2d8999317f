"""Plain data that Python has printed: dictionaries, lists, tuples, texts, numbers, None, True and False.

The text becomes JSON text, so that it is read within the same bounds. Nothing in it is evaluated but the escapes of
single texts, by `ast.literal_eval`.
"""

import ast
import re

import msgspec

from c4bench.evidence.limits import LONGEST_TEXT, UnreadableError, json_data

_LITERAL = r"""(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")"""
# Long texts are printed in pieces.
_TOKEN = re.compile(
    rf"(?P<text>{_LITERAL}(?P<more>(?:\s+{_LITERAL})*))|(?P<word>\b(?:None|True|False)\b)"
    r"|(?P<end>,?\s*[)\]}])|(?P<open>\()|(?P<key>-?\d+)(?=\s*:)"
)
_WORDS = {"None": "null", "True": "true", "False": "false"}
_ENDS = {")": "]", "]": "]", "}": "}"}


def is_printed(head: bytes) -> bool:
    """Whether a text that begins with `head` may be a dictionary that Python has printed."""
    return head.lstrip().startswith(b"{'")


def python_data(data: bytes) -> object:
    """The data in `data`; numbers that are keys become texts. Raises UnreadableError for anything else."""
    try:
        written = data.decode()
    except UnicodeDecodeError:
        raise UnreadableError("it has a text that is no UTF-8") from None
    return json_data(_TOKEN.sub(_as_json, written).encode())


def _as_json(token: re.Match[str]) -> str:
    """What stands in JSON for a token of Python."""
    found = token[0]
    if token["text"]:
        return _text(found, whole=not token["more"])
    if token.lastgroup == "end":
        return _ENDS[found[-1]]
    if token.lastgroup == "key":
        return f'"{found}"'
    return "[" if token.lastgroup == "open" else _WORDS[found]


def _text(found: str, *, whole: bool) -> str:
    """A text, printed as a `whole` or in pieces, as JSON."""
    if len(found) > LONGEST_TEXT:
        raise UnreadableError(f"it has a text of more than {LONGEST_TEXT} characters")
    bare = found[1:-1]
    if "\\" in bare or not whole:
        try:
            bare = ast.literal_eval(f"({found})")
        except (ValueError, SyntaxError):
            raise UnreadableError("it has a text with an escape that Python does not have") from None
    try:
        return msgspec.json.encode(bare).decode()
    except UnicodeEncodeError:
        raise UnreadableError("it has a text that is no UTF-8") from None
