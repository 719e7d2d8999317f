"""Pairwise covering arrays: few cases that contain every pair of values of different parameters."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

Case = dict[str, Any]


def pairs(case: Case) -> set[frozenset[tuple[str, Any]]]:
    """Every two parameters of a case, with their values."""
    return {frozenset(pair) for pair in combinations(case.items(), 2)}


def all_pairs(parameters: Mapping[str, Sequence[Any]]) -> set[frozenset[tuple[str, Any]]]:
    """Every two values of different parameters."""
    return {
        frozenset({(one, value), (other, partner)})
        for one, other in combinations(parameters, 2)
        for value in parameters[one]
        for partner in parameters[other]
    }


def pairwise(parameters: Mapping[str, Sequence[Any]]) -> list[Case]:
    """Cases that cover all pairs, found greedily: each takes a pair that is missing and the best of everything else.

    As in Cohen et al., "The AETG system" (IEEE TSE 23(7), 1997), with one candidate a case; the same in every run.
    """
    missing = dict.fromkeys(sorted(all_pairs(parameters), key=sorted_text))
    cases = []
    while missing:
        case = dict(next(iter(missing)))
        for name in parameters:
            if name not in case:
                case[name] = max(parameters[name], key=lambda value, name=name: gain(case, name, value, missing))
        cases.append(case)
        for pair in pairs(case):
            missing.pop(pair, None)
    return cases


def gain(case: Case, name: str, value: Any, missing: Mapping[frozenset[tuple[str, Any]], None]) -> int:
    """How many missing pairs a value adds to an unfinished case."""
    return sum(frozenset({(name, value), item}) in missing for item in case.items())


def sorted_text(pair: frozenset[tuple[str, Any]]) -> list[str]:
    """An order of pairs that does not hang on the hashing of strings."""
    return sorted(map(repr, pair))
