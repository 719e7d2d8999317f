"""Lists of cables: CSV or a table, with a heading, and the JSON of NetBox's API and of NetQ."""

import csv
import io
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from c4bench.budget import INVENTORY
from c4bench.decoding import DecodingError, json_in
from c4bench.errors import UsageError
from c4bench.foreign_text import one_line
from c4bench.inventory.cabling.rates import written
from c4bench.inventory.cabling.wiring import End, Wire, Wiring, once

# What lists call both ends, the devices and the ports there, without spaces, underscores and capitals.
_ENDS = (
    "a|start|local|source|src|from|near|left|1",
    "b|z|end|remote|peer|neighbou?r|dest|destination|dst|to|target|far|right|2",
)
_DEVICE = "(?:device|host|node|switch|system|server)(?:name)?"
_PORT = "(?:port|interface|iface|intf|if|nic)(?:name|id)?"
_DEVICES, _PORTS = (
    tuple(
        re.compile(f"(?:side|end)?(?:{end})(?:end|side|terminations?)?{what}|{what}(?:{end})|{others}")
        for end, others in zip(_ENDS, alone, strict=True)
    )
    for what, alone in (
        (
            _DEVICE,
            (
                "hostname|device|source|from|switch(?:name)?",
                "peer|neighbou?r|neighbou?rname|destination|target|to|server(?:name)?",
            ),
        ),
        (
            _PORT,
            (
                "sideaname|terminationsa?|terminationa|aterminations?|ifname|interface|port|switchport",
                "sidebname|terminationb|bterminations?|server(?:port|nic|interface)|nic",
            ),
        ),
    )
)
_TYPES = re.compile("sideatype|terminationatype|aterminationstype|atype")
_SPEED = re.compile("(?:link|port|cable)?(?:speed|rate|bandwidth)(?:in)?(?P<unit>[mg](?:b(?:its?)?(?:ps|s)?)?)?")
# Speeds without a unit: sonic-mgmt's links are in Mbit/s.
_SPEEDS = {"m": 1e6, "g": 1e9}
_ALONE = {"hostname", "device", "ifname", "interface", "port"}
_DASHES = re.compile(r"\s*-{2,}(?:\s+-{2,})+\s*")
_WORD = re.compile(r"[A-Za-z0-9]")
_OTHER_KINDS = {"power", "console"}
_HEAD_LINES = 20
_JSON_KEYS = re.compile(
    r'"(?:a_terminations|termination_a|peerHostname|peer_hostname|peerIfname)"\s*:|"links"\s*:\s*\[\s*\[\s*\{'
)


class _Columns(NamedTuple):
    """The headings of a list that are used."""

    a: str
    a_port: str
    b: str
    b_port: str
    speed: str
    type: str


def recognised_csv(text: str) -> bool:
    """Whether one of the first lines is a heading with the devices at both ends."""
    return any(_columns(row) for row in _heading_rows(text))


def recognised_json(text: str) -> bool:
    """Whether it is a list of NetBox's API, or of NetQ."""
    return text.lstrip()[:1] in {"{", "["} and bool(_JSON_KEYS.search(text))


def read_csv(text: str) -> Wiring:
    """The rows below the heading."""
    lines = _as_csv(text)
    for number, row in enumerate(_heading_rows(text)):
        if _columns(row):
            rest = "\n".join(lines[number:])
            reader = csv.DictReader(io.StringIO(rest), dialect=_dialect(lines[number]), restkey="", restval="")
            return _wiring("CSV", ({str(key): str(value) for key, value in one.items()} for one in reader))
    raise UsageError("no heading names the devices at both ends of a cable")


def read_json(text: str) -> Wiring:
    """The cables of NetBox's API, or the neighbours of NetQ."""
    try:
        data = json_in(text, object)
    except DecodingError as error:
        raise UsageError(f"it is no JSON: {error}") from None
    content = data.get("content", data) if isinstance(data, dict) else None
    links = content.get("links") if isinstance(content, dict) else None
    if isinstance(links, list) and links and isinstance(links[0], list):
        return _wiring("NVIDIA Air", _of_air(links))
    rows = [_flat(one) for one in _objects(data)]
    kind = "NetBox" if any("adevice" in row for row in rows) else "NetQ"
    return _wiring(kind, iter(rows))


def _of_air(links: list[object]) -> Iterator[dict[str, str]]:
    """The pairs of ends in a topology of NVIDIA Air; one that leads out has no node."""
    for link in links:
        ends = [end if isinstance(end, dict) else {} for end in link] if isinstance(link, list) else []
        if len(ends) == 2:
            a, b = ends
            named = {"adevice": a.get("node"), "aport": a.get("interface"), "bdevice": b.get("node")}
            yield {key: str(value or "") for key, value in (named | {"bport": b.get("interface")}).items()}


def _objects(data: object) -> Iterator[Mapping[str, object]]:
    """The rows, wherever a tool puts its list."""
    if isinstance(data, dict):
        lists = [value for value in data.values() if isinstance(value, list)]
        data = max(lists, key=len, default=[])
    yield from (one for one in data if isinstance(one, dict)) if isinstance(data, list) else ()


def _flat(one: Mapping[str, object]) -> dict[str, str]:
    """A row of texts; NetBox's terminations become columns of their own."""
    row = {key: str(value) for key, value in one.items() if isinstance(value, str | int | float)}
    for side in ("a", "b"):
        found = one.get(f"{side}_terminations") or one.get(f"termination_{side}")
        first = found[0] if isinstance(found, list) and found else found
        if not isinstance(first, dict):
            continue
        inner = first.get("object")
        end = inner if isinstance(inner, dict) else first
        device = end.get("device")
        row[f"{side}device"] = str(device.get("name", "")) if isinstance(device, dict) else str(device or "")
        row[f"{side}port"] = str(end.get("name", ""))
        row[f"{side}type"] = str(first.get("object_type") or one.get(f"termination_{side}_type") or "dcim.interface")
    return row


def _wiring(kind: str, rows: Iterator[dict[str, str]]) -> Wiring:
    wires: list[Wire] = []
    other, half, unknown = 0, 0, dict[str, None]()
    columns: _Columns | None = None
    for row in rows:
        columns = columns or _columns(list(row))
        if columns is None:
            continue
        typed = columns.type and "interface" not in row.get(columns.type, "interface").lower()
        if typed or _OTHER_KINDS & {value.strip().lower() for value in row.values()}:
            other += 1
            continue
        a, b = row.get(columns.a, "").strip(), row.get(columns.b, "").strip()
        if not a or not b:
            half += 1
            continue
        speed = row.get(columns.speed, "")
        rate_bps = written(speed, _usual_unit(columns.speed))
        if speed.strip() and not rate_bps:
            unknown[one_line(speed.strip(), 40)] = None
        wires.append(
            Wire(End(a, row.get(columns.a_port, "").strip()), End(b, row.get(columns.b_port, "").strip()), rate_bps)
        )
        if len(wires) > INVENTORY.records:
            raise UsageError(f"it has more than {INVENTORY.records} cables")
    notes = [f"{other} cables of other kinds (power, console) are left out"] if other else []
    notes += [f"{half} rows without a device at both ends are left out"] if half else []
    notes += [f"speeds without a unit are left out: {', '.join([*unknown][:8])}"] if unknown else []
    notes += [] if any(wire.rate_bps for wire in wires) else ["the file states no speeds"]
    return Wiring(kind, tuple(once(wires)), {}, tuple(notes))


def _columns(heading: list[str]) -> _Columns | None:
    """The columns by their headings; None without the devices at both ends."""
    plain = {name: _plain(name) for name in heading}

    def first(pattern: re.Pattern[str]) -> str:
        """The first heading of a pattern; one that says which end it is comes before a plain `device` or `port`."""
        found = [name for name in heading if pattern.fullmatch(plain[name])]
        return next((name for name in found if plain[name] not in _ALONE), found[0] if found else "")

    found = _Columns(
        first(_DEVICES[0]), first(_PORTS[0]), first(_DEVICES[1]), first(_PORTS[1]), first(_SPEED), first(_TYPES)
    )
    return found if found.a and found.b and found.a != found.b else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _usual_unit(heading: str) -> float:
    """The bit/s of a speed of 1 below a heading, 0 where it does not state a unit."""
    plain = _plain(heading)
    match = _SPEED.fullmatch(plain)
    unit = "m" if plain == "bandwidth" else (match["unit"] or "" if match else "")
    return _SPEEDS.get(unit[:1], 0.0)


def _heading_rows(text: str) -> list[list[str]]:
    lines = _as_csv(text[:65_536])[:_HEAD_LINES]
    return [next(csv.reader([line], dialect=_dialect(line)), []) if line.strip() else [] for line in lines]


def _as_csv(text: str) -> list[str]:
    """The lines of a text; of a table, ruled or with dashes below its heading, with tabs between its columns."""
    lines = text.splitlines()
    ruled = [line.strip().strip("|") for line in lines if line.lstrip().startswith("|") and _WORD.search(line)]
    if ruled:
        return ["\t".join(cell.strip() for cell in line.split("|")) for line in ruled]
    dashes = next((at for at, line in enumerate(lines[:_HEAD_LINES]) if at and _DASHES.fullmatch(line)), 0)
    if not dashes:
        return lines
    starts = [match.start() for match in re.finditer("-+", lines[dashes])]
    spans = [*pairwise([*starts, len(text)])]
    table = [lines[dashes - 1], *(line for line in lines[dashes + 1 :] if line.strip())]
    return ["\t".join(line[start:end].strip() for start, end in spans) for line in table]


def _dialect(line: str) -> type[csv.Dialect]:
    """Commas, semicolons or tabs, whichever a heading has most of."""

    class _Dialect(csv.excel):
        delimiter = max(",;\t", key=line.count)

    return _Dialect
