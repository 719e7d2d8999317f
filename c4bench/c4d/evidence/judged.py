"""A finding with the ranks of the job that it is about."""

from typing import NamedTuple

from c4bench.c4d.diagnosis import Finding


class Judged(NamedTuple):
    """A finding with the ranks it is about: `culprits` all to blame if `sure`, else one of them.

    `ahead` and `behind` are ranks of which it is not known who is to blame, `waiting` those that only wait where the
    graph does not show it. `hosts` are those of processes whose ranks are not known.
    """

    finding: Finding
    culprits: tuple[int, ...]
    sure: bool
    ahead: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    waiting: tuple[int, ...] = ()
