"""Which of the known paths a source port takes, by as few answers as that needs. Pure.

Where all paths between two leaves are known, some switches of a path tell the others. An address names a link, so a
switch far away shows by which way packets came.
"""

from collections.abc import Collection, Iterable, Sequence

from c4bench.c4p.knowledge.pair_search import Answers

# The switches of a path, by their addresses.
Switches = tuple[str, ...]


def fitting(paths: Iterable[Switches], answers: Answers) -> list[Switches]:
    """The paths that have these switches."""
    return [path for path in paths if all(path[position] == address for position, address in answers.items())]


def best_positions(paths: Sequence[Switches], answers: Answers) -> list[int]:
    """The positions whose switch tells these paths apart, those that leave the fewest first.

    Of equals the nearest one is first.
    """
    distinct = {position: len({path[position] for path in paths}) for position in range(len(paths[0]))}
    telling = [position for position, count in distinct.items() if count > 1 and position not in answers]
    return sorted(telling, key=lambda position: -distinct[position])


def is_new(paths: Iterable[Switches], found: Collection[Switches]) -> bool:
    """Whether one of these paths has not been found yet."""
    return any(path not in found for path in paths)
