"""What speaks against a component that is slow, before it is named."""

from typing import NamedTuple

from c4bench.c4d.localise import Blame


class Case(NamedTuple):
    """What is to blame, since when (s), by how much at least (log ratio), and in how many spans."""

    blame: Blame
    onset_s: float
    least: float
    spans: float
