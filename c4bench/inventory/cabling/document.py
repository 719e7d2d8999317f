"""A wiring as a topology file of ours: YAML that `--c4-topology`, `c4_fabric` and `topology check` read."""

import json
import re
from collections.abc import Iterator

import msgspec

from c4bench.errors import UsageError
from c4bench.foreign_text import file_name, one_line
from c4bench.inventory.cables import Cable, GraphError, check, unreached
from c4bench.inventory.cabling.rates import format_rate
from c4bench.inventory.cabling.wiring import HOST, SWITCH, Wire, Wiring, graph_of, ordered
from c4bench.inventory.fabric import LIMITS
from c4bench.units import parse_rate

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._/-]*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
_NAME = 40


def cables(wiring: Wiring, rate_bps: float = 0.0, scale: float = 1.0) -> tuple[Cable, ...]:
    """The cables as topology files write them: hosts' first, with `rate_bps` where the file states no speed.

    A rate that is not stated, here or there, is "". All rates are multiplied by `scale`.
    """
    found = []
    for wire in ordered(wiring):
        rate = (wire.rate_bps or rate_bps) * scale
        found.append(Cable((_end(wiring, wire, 0), _end(wiring, wire, 1)), format_rate(rate) if rate else ""))
    return tuple(found)


def hosts_of(wiring: Wiring) -> tuple[str, ...]:
    """The hosts, in the order of the file."""
    return tuple(node for node in wiring.nodes if wiring.roles[node] == HOST)


def switches_of(wiring: Wiring) -> tuple[str, ...]:
    """The switches, in the order of the file."""
    return tuple(node for node in wiring.nodes if wiring.roles[node] == SWITCH)


def checked(wiring: Wiring, rate_bps: float = 0.0) -> Wiring:
    """The wiring, with a note if it is only a part of a fabric.

    Raises UsageError for cables that no fabric has: a host joined to a host, a port with two cables.
    """
    graph = graph_of(wiring, rate_bps or parse_rate(LIMITS.rates[0]))
    try:
        check(graph, LIMITS, whole=False)
    except GraphError as error:
        raise UsageError(error.problem) from None
    apart = unreached(graph)
    notes = (*wiring.notes, *((f"by the cables in the file, {apart.partition(';')[0]}",) if apart else ()))
    return msgspec.structs.replace(wiring, notes=notes)


def document(wiring: Wiring, source: str, rate_bps: float = 0.0, scale: float = 1.0) -> str:
    """The text of the file. `source` is the name of the file that the cables come from."""
    lines = [f"# Cables of {one_line(source, 200)} ({wiring.kind}), by c4bench topology import."]
    lines += [f"# {one_line(note)}" for note in wiring.notes]
    name, description = titles(source)
    lines += [
        f"name: {_scalar(name)}",
        f"description: {_scalar(description)}",
        f"switches: [{', '.join(map(_scalar, switches_of(wiring)))}]",
        f"hosts: [{', '.join(map(_scalar, hosts_of(wiring)))}]",
        "links:",
        *_links(wiring, rate_bps, scale),
    ]
    return "".join(f"{line}\n" for line in lines)


def _links(wiring: Wiring, rate_bps: float, scale: float) -> Iterator[str]:
    for wire, cable in zip(ordered(wiring), cables(wiring, rate_bps, scale), strict=True):
        between = ", ".join(map(_scalar, cable.between))
        rate = f", rate: {cable.rate}" if cable.rate else ""
        nic = wire.a.port if wiring.roles[wire.a.node] == HOST else ""
        yield f"  - {{between: [{between}]{rate}}}" + (f"  # {one_line(wire.a.node)} {one_line(nic)}" if nic else "")


def _end(wiring: Wiring, wire: Wire, which: int) -> str:
    """An end with its port; a host's NICs are numbered in the order of its links, so its port is not written."""
    end = wire.ends[which]
    return end.node if wiring.roles[end.node] == HOST or not end.port else f"{end.node}/{end.port}"


def titles(source: str) -> tuple[str, str]:
    """The name and the description of the fabric in the file `source`."""
    file = file_name(source).rpartition("/")[2]
    stem = re.sub(r"(?:\.clab)?\.[A-Za-z0-9]{1,5}$", "", file)
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", stem)[:_NAME].strip("-.")
    return name or "imported", f"cables of {one_line(file, 200)}"


def _scalar(text: str) -> str:
    """A YAML scalar: plain where that means the text, else in quotes as JSON writes them."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else json.dumps(text)
