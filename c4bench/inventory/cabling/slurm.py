"""Slurm's `topology.conf` and `topology.yaml`: a tree of switches, without ports, speeds and numbers of cables."""

import re
from collections.abc import Iterator

from c4bench.budget import INVENTORY
from c4bench.decoding import from_yaml
from c4bench.errors import UsageError
from c4bench.inventory.cabling.wiring import HOST, SWITCH, End, Wire, Wiring

RECOGNISED = re.compile(r"^[ \t]*(?:SwitchName|BlockName)[ \t]*=", re.MULTILINE | re.IGNORECASE)
_TOPOLOGY = re.compile(r"^[ ]{0,8}(?:-[ ]{1,4})?topology:", re.MULTILINE)
_KIND = re.compile(r"^[ ]{0,16}(?:-[ ]{1,4})?(?:tree|block|flat)[ ]{0,4}:", re.MULTILINE)
_PAIR = re.compile(r"(?<!\w)(\w{1,64})[ \t]*=[ \t]*(\S+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_NOTES = (
    "a Slurm tree states no ports, no speeds and not how many cables join two switches: one stands for all of them",
)
_BLOCKS = "it states blocks of nodes that are near each other, and no switches, so it is no cabling"


def recognised_yaml(text: str) -> bool:
    """Whether it is `topology.yaml`."""
    return bool(_TOPOLOGY.search(text) and _KIND.search(text))


def read(text: str) -> Wiring:
    """The tree of `topology.conf`. Raises UsageError with the line."""
    rows: list[tuple[str, str, str]] = []
    speeds = False
    joined = re.sub(r"\\\s*\n", " ", text)
    for number, line in enumerate(joined.splitlines(), 1):
        values = {key.lower(): value for key, value in _PAIR.findall(line.partition("#")[0])}
        if "blockname" in values:
            raise UsageError(f"line {number}: {_BLOCKS}")
        if "switchname" in values:
            rows.append((values["switchname"], values.get("switches", ""), values.get("nodes", "")))
            speeds = speeds or "linkspeed" in values
    notes = (*_NOTES, *(("LinkSpeed has no unit in Slurm, and is left out",) if speeds else ()))
    return _wiring(rows, notes)


def read_yaml(text: str) -> Wiring:
    """The tree of `topology.yaml`, of which the first topology that is a tree counts."""
    document: object = from_yaml(text)
    listed = [one for one in document if isinstance(one, dict)] if isinstance(document, list) else []
    trees = [one for one in listed if isinstance(one.get("tree"), dict)]
    if not trees:
        raise UsageError(_BLOCKS if any("block" in one for one in listed) else "it states no tree of switches")
    switches = trees[0]["tree"].get("switches")
    rows = [
        (str(one["switch"]), str(one.get("children") or ""), str(one.get("nodes") or ""))
        for one in (switches if isinstance(switches, list) else [])
        if isinstance(one, dict) and "switch" in one
    ]
    others = len(listed) - 1
    notes = (f"of {len(listed)} topologies the first tree is read",) if others else ()
    return _wiring(rows, (*_NOTES, *notes))


def _wiring(rows: list[tuple[str, str, str]], notes: tuple[str, ...]) -> Wiring:
    wires: list[Wire] = []
    roles: dict[str, str] = {}
    for switch, children, nodes in rows:
        roles[switch] = SWITCH
        for child in expand(children):
            roles.setdefault(child, SWITCH)
            wires.append(Wire(End(child), End(switch)))
        for node in expand(nodes):
            if roles.get(node) == SWITCH:
                raise UsageError(f"{node} is a node and a switch")
            roles[node] = HOST
            wires.append(Wire(End(node), End(switch)))
        if len(wires) > INVENTORY.names:
            raise UsageError(f"it has more than {INVENTORY.names} nodes and switches")
    return Wiring("Slurm topology", tuple(wires), roles, notes)


def expand(hostlist: str) -> Iterator[str]:
    """The names in a hostlist: `gpu-[01-02,7],io1` are gpu-01, gpu-02, gpu-7 and io1. Raises UsageError."""
    for part in re.split(r",(?![^\[]*\])", hostlist):
        yield from _of_part(part.strip())


def _of_part(part: str) -> Iterator[str]:
    if not part:
        return
    before, opened, rest = part.partition("[")
    if not opened:
        yield part
        return
    inside, closed, after = rest.partition("]")
    if not closed:
        raise UsageError(f"{part[:60]!r}: a bracket has no end")
    for numbers in inside.split(","):
        match = _RANGE.fullmatch(numbers.strip())
        if match is None:
            raise UsageError(f"{part[:60]!r}: {numbers[:20]!r} is no number and no range")
        first, last = int(match[1][:12]), int((match[2] or match[1])[:12])
        if last - first > INVENTORY.names:
            raise UsageError(f"{part[:60]!r}: more than {INVENTORY.names} names")
        for number in range(first, last + 1):
            yield from (f"{before}{number:0{len(match[1])}d}{end}" for end in ([*_of_part(after)] or [""]))
