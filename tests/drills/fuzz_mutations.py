"""Mutated inputs: a valid one with something changed that a stranger might change, by the structure of its form."""

import json
import math
import re
import struct
from typing import Any, NamedTuple

import msgspec
import yaml

# PyYAML takes 30 us for each word.
LONGEST_BYTES, LONGEST_YAML_BYTES = 8 << 10, 2 << 10
NUMBERS = (
    *(0, -1, 1, 2, 255, 256, 65_535, 65_536, 1_000_000, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**62),
    *(2**63 - 1, -(2**63), 2**64 - 1, 0.5, -0.0, 1e-300, 1e11, 1e300, 1e308, -1e308, math.nan, math.inf, -math.inf),
)
STRINGS = (
    *("", " ", "\0", "\n", "a\nb", "\r", "\t", "\x1b[31m", "\x85", "\u2028", "\u202e", "\U0001f4a5" * 128, "\x7f" * 40),
    *("a" * 5000, "9" * 5000, "-1", "-rf", "1e999", "nan", "²", "٣", "0x10", "1_000", "+1", " 1", "N/A", "null"),
    *("..", "../../x", "/", "/dev/zero", ".", "*", ">", "a.b", "a b", "h0", "h1", "h0/0", "h0/x", "j", "j~1", "~"),
    *("$(id)", "`id`", "{{ 7*7 }}", "{% x %}", "%s%n", "{0}", "[a]", "![x](http://x)", "<b>", "|", "a,b", "0-3000000"),
    *("h[0:9999999]", "0[0:9][0:9][0:9][0:9][0:9][0:9]", "10gbit", "1e308gbit", "-1gbit", "5s", "true", "c4", "all"),
)
_OTHER_TYPES = (None, True, False, 0, -1, 1.5, "", "x", [], {}, [[]], [None], {"": None}, {"a": 1}, [1, 2, 3])
# Text that no tree of plain data encodes to.
_RAW = {
    "json": (b"NaN", b"-Infinity", b"1e400", b"-1e400", b"9" * 5000, b"1." + b"0" * 4000, b'"\\ud800"', b'"\\udc00x"',
             b"-0", b"01", b"18446744073709551616", b'"\xff"', b"'x'", b"{,}", b'{"a":1,"a":2}', b"/**/1"),
    "yaml": (b"&a [*a]", b"*a", b"!!python/object/apply:os.system [id]", b"!!binary x", b"!unsafe x", b"2001-99-99",
             b"2001-12-14t21:59:43.10-05:00", b"1:30:00", b"0o17", b"0b2", b".nan", b"-.inf", b"1_0_0", b"{[a]: b}",
             b"{<<: x}", b"{<<: [1]}", b"? ", b'"\\ud800"', b"9" * 5000, b"~", b"<<", b"!!set {a}", b"!!omap [a: 1]",
             b"!!pairs [a]", b"[&x [1,1,1,1,1,1,1,1,1], &y [*x,*x,*x,*x,*x,*x,*x,*x,*x], [*y,*y,*y,*y,*y,*y,*y,*y]]"),
    "msgpack": (b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xa2\xff\xfe",
                b"\xdb\x7f\xff\xff\xff", b"\xa3\xed\xa0\x80", b"\xcf" + b"\xff" * 8, b"\xd4\x01\x00", b"\xd6\xff\xff",
                b"\xc7\x0c\xff" + b"\xff" * 12, b"\x82\xa1a\x01\xa1a\x02", b"\x81\x90\x01", b"\xca\x7f\xc0\x00\x00"),
}  # fmt: skip
_NOT_FINITE = {
    "json": {"nan": b"NaN", "inf": b"1e400", "-inf": b"-1e400"},
    "yaml": {"nan": b".nan", "inf": b".inf", "-inf": b"-.inf"},
}
_DEEP = {"json": (b"[", b"]"), "yaml": (b"[", b"]"), "msgpack": (b"\x91", b"")}
_SNIPPETS = (
    *(b"\x00", b"\xff\xfe", b"\x85", b"\r\n", b"\n\n", b"\x1b]0;x\x07", b"9" * 400, b"-1", b"1e999", b"null", b"&a *a"),
    *(b"]" * 20, b"[" * 3000, b'{"a":' * 2000, b"- " * 3000, b":", b",", b"=", b"%00", b"\\u0000", b"\\ud800", b"//["),
)
_WORD, _DIGITS = re.compile(rb"[^\s,;:=\[\](){}\"']+"), re.compile(rb"-?\d[\d,]*(?:\.\d+)?")


class Corpus(NamedTuple):
    """Valid inputs of one form: json, lines (of JSON), yaml, msgpack, text or binary."""

    form: str
    seeds: tuple[bytes, ...]


def of(form, *seeds):
    """The corpus of these valid inputs, as a target has it."""
    return lambda: Corpus(form, seeds)


def mutated(corpus, draw):
    """A seed with one thing changed or several: in its structure, in its bytes, or in both."""
    seed = draw.choice(corpus.seeds)
    kind = draw.random()
    data = seed if kind < 0.25 else _structured(corpus, seed, draw)
    if kind < 0.4:
        for _ in range(draw.choice((1, 1, 1, 2, 4, 8))):
            data = _bytes_changed(data, corpus, draw)
    return data[: max(LONGEST_YAML_BYTES if corpus.form == "yaml" else LONGEST_BYTES, len(seed))]


def _structured(corpus, seed, draw):
    match corpus.form:
        case "json" | "yaml" | "msgpack":
            return _of_tree(corpus.form, seed, corpus, draw)
        case "lines":
            lines = _lines_changed(seed, corpus, draw).splitlines()
            at = draw.randrange(len(lines) or 1)
            return b"\n".join(_of_tree("json", line, corpus, draw) if number == at else line
                              for number, line in enumerate(lines)) + b"\n"  # fmt: skip
        case "text":
            return _lines_changed(seed, corpus, draw)
        case _:
            return _numbers_written(seed, draw)


# Trees of plain data


def _of_tree(form, data, corpus, draw):
    """The data with nodes of its tree changed; as it is if it is no tree."""
    tree = _tree(form, data)
    if not isinstance(tree, list | dict):
        return data
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        holder, key = draw.choice(_places(tree, []) or [(None, None)])
        if holder is not None:
            _change(form, holder, key, corpus, draw)
    return _encoded(form, tree)


def _tree(form, data):
    try:
        if form == "yaml":
            # With keys that JSON can have, since trees of YAML are encoded as that.
            return json.loads(json.dumps(yaml.safe_load(data), default=str))
        return (msgspec.json if form == "json" else msgspec.msgpack).decode(data)
    except (msgspec.MsgspecError, yaml.YAMLError, ValueError):
        return None


def _places(tree, found):
    """Every place in the tree: what holds it, and its key or index there."""
    for key, below in tree.items() if isinstance(tree, dict) else enumerate(tree):
        found.append((tree, key))
        if isinstance(below, list | dict):
            _places(below, found)
    return found


def _change(form, holder, key, corpus, draw):
    value = holder[key]
    match draw.randrange(13):
        case 12 if isinstance(value, dict) and value:
            holder[key] = msgspec.Raw(_given_twice(form, value, draw))
        case 0 | 1 | 2 | 3:
            holder[key] = _like(form, value, draw)
        case 4 | 5:
            holder[key] = _copied(draw.choice(_OTHER_TYPES))
        case 6:
            del holder[key]
        case 7:
            holder[key] = msgspec.Raw(draw.choice(_RAW[form]))
        case 8:
            holder[key] = msgspec.Raw(_nested(form, draw.choice((40, 200, 1100, 5000))))
        case 9 if isinstance(holder, list):
            holder[key:key] = [value] * draw.choice((1, 2, 300))
        case 9 | 10 if isinstance(holder, dict):
            holder[draw.choice((*STRINGS, *map(str, holder)))] = value
        case _:
            other = _tree(form, draw.choice(corpus.seeds))
            places = _places(other, []) if isinstance(other, list | dict) else []
            if places:
                there, name = draw.choice(places)
                holder[key] = there[name]


def _like(form, value, draw):
    """Another value of the same type, at its bounds."""
    if isinstance(value, bool | None):
        return draw.choice((None, True, False))
    if isinstance(value, int | float):
        number = draw.choice(NUMBERS)
        return number if form == "msgpack" or math.isfinite(number) else msgspec.Raw(_NOT_FINITE[form][repr(number)])
    if isinstance(value, str):
        return draw.choice((*STRINGS, value + draw.choice(STRINGS), value * 40))
    if isinstance(value, bytes):
        return _numbers_written(value, draw)
    if isinstance(value, list) and value:
        return draw.choice((value[::-1], value * 2, value[:1], value * 200, []))
    return _copied(draw.choice(_OTHER_TYPES))


def _copied(value):
    return msgspec.json.decode(msgspec.json.encode(value))


def _nested(form, depth):
    begins, ends = _DEEP[form]
    return begins * depth + (b"\xc0" if form == "msgpack" else b"1") + ends * depth


def _given_twice(form, mapping, draw):
    """The mapping with one of its keys a second time, with another value."""
    key, other = draw.choice(list(mapping)), _copied(draw.choice(_OTHER_TYPES))
    if form == "msgpack":
        pairs = [(key, other), *mapping.items()]
        encode = msgspec.msgpack.encode
        return b"\xdf" + len(pairs).to_bytes(4) + b"".join(encode(one) + encode(value) for one, value in pairs)
    encode = msgspec.json.encode
    return b"{" + encode(str(key)) + b":" + encode(other) + b"," + encode(mapping)[1:]


def _encoded(form, tree):
    # YAML has all of JSON.
    return msgspec.msgpack.encode(tree) if form == "msgpack" else msgspec.json.encode(tree)


# Lines and words of text


def _lines_changed(data, corpus, draw):
    """Lines doubled, lost, moved or taken from another seed; words and numbers in them changed."""
    lines = data.split(b"\n")
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(lines))
        match draw.randrange(10):
            case 0:
                lines[at:at] = [lines[at]] * draw.choice((1, 2, 300))
            case 1 if len(lines) > 1:
                del lines[at : at + draw.choice((1, 1, 3))]
                lines = lines or [b""]
            case 2:
                lines.insert(draw.randrange(len(lines)), lines.pop(at))
            case 3:
                lines.insert(at, draw.choice(draw.choice(corpus.seeds).split(b"\n")))
            case 4 | 5 | 6:
                lines[at] = _replaced(lines[at], _DIGITS, draw)
            case _:
                lines[at] = _replaced(lines[at], _WORD, draw)
    return b"\n".join(lines)


def _replaced(line, pattern, draw):
    found = list(pattern.finditer(line))
    if not found:
        return line
    where = draw.choice(found)
    number = draw.choice((*map(repr, NUMBERS), "9" * 5000, "0-3000000", "0-7", "1,2,3", "²", "-", ""))
    put = number if pattern is _DIGITS else draw.choice((number, *STRINGS))
    return line[: where.start()] + put.encode("utf-8", "surrogatepass") + line[where.end() :]


# Bytes


def _numbers_written(data, draw):
    """Numbers of 1, 2, 4 or 8 bytes written over others, as a writer of binary tables would misstate them."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5))):
        size = draw.choice((1, 2, 4, 8))
        at = draw.randrange(max(1, len(changed) - size + 1))
        at -= at % size if draw.random() < 0.6 else 0
        number = draw.choice((0, 1, 0x7F, 0xFF, 0x80, 1 << (8 * size - 1), (1 << (8 * size)) - 1, 1 << (8 * size - 2)))
        written = struct.pack("<Q" if draw.random() < 0.8 else ">Q", number & ((1 << 64) - 1))
        changed[at : at + size] = written[:size] if written[0] or not number else written[-size:]
    return bytes(changed)


def _bytes_changed(data: bytes, corpus: Corpus, draw: Any) -> bytes:
    changed = bytearray(data)
    at = draw.randrange(len(changed) + 1)
    match draw.randrange(9):
        case 0:
            changed[at : at + 1] = bytes([draw.randrange(256)])
        case 1 if at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
        case 2:
            del changed[at : at + draw.randint(1, 40)]
        case 3:
            del changed[at:]
        case 4:
            changed[at:at] = changed[at : at + draw.randint(1, 200)] * draw.choice((1, 1, 20))
        case 5:
            other = draw.choice(corpus.seeds)
            changed[at:] = other[draw.randrange(len(other) + 1) :]
        case 6:
            changed[at:at] = draw.choice(_SNIPPETS)
        case 7:
            return _numbers_written(data, draw)
        case _:
            changed[at:at] = draw.randbytes(draw.randint(1, 20))
    return bytes(changed)
