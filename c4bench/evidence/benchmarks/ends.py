"""Between which two ends a run of a point-to-point benchmark was, by its file's name, its output, or a matrix of them.

A name gives two ends such as `gpu01_to_gpu02`, `gpu-a01_mlx5_0__gpu-a02_mlx5_1`, `node1-node2` or `node1/node2`, the
sender first. Output gives addresses. Where each run of a folder has addresses these tell the ends apart, and names say
what they are called: the one name that all files of an address have in common.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from c4bench.evidence.limits import short_name
from c4bench.model.evidence import BenchmarkRun

_DEVICE = r"(?:mlx[45]_(?:bond_)?\d+|bnxt_re\d+|(?:irdma|rxe|siw|hfi1_|efa_|hca|nic|rail)\d+|(?:roce|ib)[ops]\w+)"
_IPV4 = r"\d{1,3}(?:\.\d{1,3}){3}"
_HOST = rf"(?!{_DEVICE}(?![A-Za-z-]))(?:[A-Za-z][A-Za-z0-9-]*\d[a-z]?(?:\.[A-Za-z][\w.-]*)?|{_IPV4})"
_ONE = re.compile(rf"({_HOST})(?:[_.:-]({_DEVICE}))?")
_LOOSE = re.compile(rf"((?=[\d.-]*[A-Za-z]|{_IPV4}$)[A-Za-z0-9][A-Za-z0-9.-]*?)(?:[_.:-]({_DEVICE}))?")
_STRONG = re.compile(r"__|_to_|-to-|_vs_|-vs-|->|\u2192")
_WEAK = "_-,+~"
_AROUND = re.compile(
    r"^(?:ib_(?:write|read|send|atomic)_(?:bw|lat)|ucx_perftest|osu_\w+?|perftest|result|pair|bw|lat)[-_.]+"
    r"|[-_.]+(?:ib_(?:write|read|send|atomic)_(?:bw|lat)|perftest|result|bw|lat|\d+[KMG]i?B?)$"
)
MATRIX = "matrix"
_SUFFIX = re.compile(r"\.(?:txt|log|out|json|csv|res|dat|gz)$")
_LONGEST = 160


class Ends(NamedTuple):
    """From which NIC to which data went, and whether as much went back."""

    source: str
    destination: str
    both: bool = False


def in_name(file: str) -> tuple[str, str] | None:
    """Both ends that a file's name states, or it with its folder's; None if it does not, or in more than one way."""
    path = PurePath(file)
    stem = path.name
    while _SUFFIX.search(stem):
        stem = _SUFFIX.sub("", stem)
    while _AROUND.search(stem):
        stem = _AROUND.sub("", stem)
    if len(stem) > _LONGEST:
        return None
    strong = {_two(stem[: cut.start()], stem[cut.end() :], _LOOSE) for cut in _STRONG.finditer(stem)} - {None}
    weak = {_two(stem[:at], stem[at + 1 :], _ONE) for at, char in enumerate(stem) if char in _WEAK} - {None}
    ways = strong or {pair for pair in weak if pair and _shape(pair[0]) == _shape(pair[1])}
    if not ways:
        return _two(path.parent.name, stem, _ONE)
    return ways.pop() if len(ways) == 1 else None


def _shape(end: str) -> str:
    """What hosts that are numbered have in common."""
    return re.sub(r"\d+", "0", end.partition("/")[0])


def _two(left: str, right: str, form: re.Pattern[str]) -> tuple[str, str] | None:
    """Both ends as `HOST` or `HOST/DEVICE`, if there is one on either side and they are not the same."""
    one, other = form.fullmatch(left), form.fullmatch(right)
    if not (one and other):
        return None
    names = [short_name(f"{match[1]}/{match[2]}" if match[2] else match[1]) for match in (one, other)]
    return (names[0], names[1]) if names[0] != names[1] else None


def ends_of(runs: Sequence[BenchmarkRun]) -> dict[int, Ends]:
    """The ends of each run, by its place in `runs`, of those whose ends are known."""
    named = {at: pair for at, run in enumerate(runs) if (pair := _stated(run))}
    addressed = [at for at, run in enumerate(runs) if run.local and run.remote]
    if len(addressed) < len(runs) and len(named) >= len(addressed):
        return {at: _directed(runs[at], *pair) for at, pair in named.items()}
    called = _called({at: (runs[at].local, runs[at].remote) for at in addressed}, named)
    found = {}
    for at in addressed:
        client, server = (runs[at].local, runs[at].remote)[:: -1 if runs[at].serves else 1]
        found[at] = _directed(runs[at], called.get(client, client), called.get(server, server))
    return found


def _stated(run: BenchmarkRun) -> tuple[str, str] | None:
    """Both ends by name: those of a matrix's cell, both hosts of a collective, or those of a file."""
    if run.hosts:
        return run.hosts[0], run.hosts[-1]
    return (run.local, run.remote) if run.tool == MATRIX else in_name(run.source)


def _directed(run: BenchmarkRun, client: str, server: str) -> Ends:
    """In which direction data went: a client writes and sends to its server, and reads from it.

    Latency is measured there and back.
    """
    both = bool(run.hosts) or "bidirectional" in run.kind or ("latency" in run.kind and run.tool != MATRIX)
    return Ends(server, client, both) if run.kind.startswith("read") else Ends(client, server, both)


def _called(addresses: Mapping[int, tuple[str, str]], named: Mapping[int, tuple[str, str]]) -> dict[str, str]:
    """The name of each address: what the names of all runs with it have in common, and those of no other address."""
    common: dict[str, set[str]] = {}
    for at, pair in addresses.items():
        for address in pair:
            names = set(named.get(at, ()))
            common[address] = common.get(address, names) & names
    called = {address: next(iter(names)) for address, names in common.items() if len(names) == 1}
    return called if len(set(called.values())) == len(common) else {}
