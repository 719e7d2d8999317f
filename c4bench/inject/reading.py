"""What a host or a switch has been asked is not asked again, within a block that changes nothing."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from c4bench.errors import C4Error

T = TypeVar("T")


class _Answer(NamedTuple):
    value: Any
    error: C4Error | None = None


_answers: dict[Hashable, _Answer] | None = None


@contextmanager
def once() -> Iterator[None]:
    """Within the block, equal questions get the first one's answer. Nothing may be changed in it."""
    global _answers  # noqa: PLW0603  (one process, one command)
    _answers = {}
    try:
        yield
    finally:
        _answers = None


def answer(question: Hashable, ask: Callable[[], T]) -> T:
    """What `ask` returns or raises, within `once` that of the first equal question."""
    if _answers is None:
        return ask()
    if question not in _answers:
        _answers[question] = _asked(ask)
    known = _answers[question]
    if known.error is not None:
        raise known.error
    found: T = known.value
    return found


def _asked(ask: Callable[[], object]) -> _Answer:
    try:
        return _Answer(ask())
    except C4Error as error:
        return _Answer(None, error)
