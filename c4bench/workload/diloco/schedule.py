"""When each fragment is sent and received, in inner steps (arXiv 2501.18512, algorithm 2)."""

from dataclasses import dataclass

from c4bench.errors import UsageError


@dataclass(frozen=True)
class Turn:
    """A fragment's turn to be synchronised: sent after inner step `sent`, received after inner step `received`.

    Steps count from 1; `number` counts the turns of all fragments.
    """

    number: int
    fragment: int
    sent: int
    received: int


@dataclass(frozen=True)
class Schedule:
    """Each of `fragments` fragments is sent once in `period` inner steps (H) and received `overlap` steps (tau) later.

    Turns are `spacing` steps apart. Fragment p is sent when t - t_p is a multiple of H, as algorithm 2 has it (the
    paper's text has t + t_p), with t_p = (p + 1) * spacing - tau: the last fragment is received by the end of the
    period, so that no fragment is under way at a multiple of H.
    """

    period: int
    fragments: int
    spacing: int
    overlap: int

    def turn(self, number: int) -> Turn:
        """The turn of this number."""
        periods, fragment = divmod(number, self.fragments)
        received = periods * self.period + (fragment + 1) * self.spacing
        return Turn(number, fragment, received - self.overlap, received)

    def first_after(self, step: int) -> int:
        """The number of the first turn that is sent after inner step `step`, or later."""
        number = step // self.period * self.fragments
        while self.turn(number).sent <= step:
            number += 1
        return number


def schedule(period: int, fragments: int, overlap: int, spacing: int = 0) -> Schedule:
    """The schedule of so many fragments; `spacing` 0 is the largest that has room for all, as in the paper.

    Raises UsageError for steps that do not fit each other, with the parameter's name.
    """
    if period < fragments:
        raise UsageError(
            f"inner_steps: {period} is less than the {fragments} fragments (with the embedding's), "
            "of which each needs a step of its own; use more steps or fewer fragments"
        )
    if spacing and (period % spacing or spacing * fragments > period):
        raise UsageError(
            f"inner_steps: {period} is not a multiple of spacing {spacing} that has room for {fragments} fragments; "
            f"use a multiple of {spacing}, at least {spacing * fragments}, or leave spacing out"
        )
    spacing = spacing or period // fragments
    if not 0 <= overlap < spacing:
        raise UsageError(
            f"overlap: {overlap} inner steps must be from 0 to {spacing - 1}: "
            f"the next fragment is sent {spacing} steps after a fragment ({period} inner_steps / {fragments} fragments)"
        )
    return Schedule(period, fragments, spacing, overlap)
