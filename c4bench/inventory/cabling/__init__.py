"""Cabling files of other tools, read into the fabric's graph and written as a topology file of ours."""

from c4bench.inventory.cabling.document import cables, checked, document, hosts_of, switches_of, titles
from c4bench.inventory.cabling.formats import parse, read, recognise
from c4bench.inventory.cabling.wiring import Wiring, with_roles

__all__ = [
    "Wiring",
    "cables",
    "checked",
    "document",
    "hosts_of",
    "parse",
    "read",
    "recognise",
    "switches_of",
    "titles",
    "with_roles",
]
