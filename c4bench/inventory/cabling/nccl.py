"""NCCL's topology file (`NCCL_TOPO_DUMP_FILE`): the inside of one host. It has no cables."""

import re
from xml.etree import ElementTree

from c4bench.errors import UsageError

RECOGNISED = re.compile(r"<(?:system|graphs) version=\"\d+\">")
_DECLARATION = re.compile(r"<!(?!--)")
_SWITCH_CLASS = "0x0604"
_MOST_BYTES = 16 << 20
_DEEPEST = 64
_HEAD = 65_536


def refuse(text: str) -> None:
    """Raises UsageError that says what the file has instead of cables."""
    if "<graphs " in text[:_HEAD]:
        raise UsageError("NCCL's graph file lists the channels of one host and no cables, so it is no fabric")
    try:
        near = near_nics(text)
    except ElementTree.ParseError as error:
        raise UsageError(f"it looks like NCCL's topology file, and is no XML: {error}") from None
    listed = "; ".join(f"GPU {gpu}: {', '.join(nics) or 'no NIC'}" for gpu, nics in list(near.items())[:16])
    raise UsageError(
        "NCCL's topology file shows the inside of one host and no cables, so it is no fabric; below the PCIe switch of "
        f"each GPU are {listed or 'no GPUs'}"
    )


def near_nics(text: str) -> dict[str, tuple[str, ...]]:
    """By a GPU's number, the NICs below the PCIe switch that it is below. Raises ParseError.

    Entities are refused, since a few of them expand without end.
    """
    if _DECLARATION.search(text) or len(text) > _MOST_BYTES:
        raise ElementTree.ParseError("it declares entities, or is too large")
    root = ElementTree.fromstring(text)  # noqa: S314  (no entities, bounded)
    near: dict[str, tuple[str, ...]] = {}
    waiting: list[tuple[ElementTree.Element, ElementTree.Element | None, int]] = [(root, None, 0)]
    while waiting:
        here, switch, depth = waiting.pop()
        if here.tag == "gpu":
            nics = () if switch is None else tuple(net.get("name", "") for net in switch.iter("net"))
            near[here.get("dev", "?")] = nics
        is_switch = here.tag == "pci" and here.get("class", "").startswith(_SWITCH_CLASS)
        if depth < _DEEPEST:
            waiting += [(below, here if is_switch else switch, depth + 1) for below in here]
    return dict(sorted(near.items()))
