"""What probes say for and against each suspect: what each asked, what it answered, and which suspects that left."""

from collections.abc import Collection, Sequence

from c4bench.c4d.probing.doubt import Doubt
from c4bench.model.diagnosis import Component, Diagnosis
from c4bench.model.hypothesis import Argument, Fact, Hypothesis, Standing
from c4bench.model.recording import ProbeSweep

# So many answers are shown on either side.
_SHOWN = 4


def probed_hypotheses(diagnosis: Diagnosis, doubt: Doubt) -> list[Hypothesis]:
    """What probes have left, and the suspects that they have ended, each with the answers that speak for it or not."""
    left = diagnosis.suspects
    ended = [one for one in doubt.suspects if one not in left]
    answers = list(doubt.answers())
    return [Hypothesis(one, _standing(one, left), *_arguments(one, doubt, answers)) for one in (*left, *ended)]


def _arguments(
    one: Component, doubt: Doubt, answers: Sequence[tuple[frozenset[Component], bool, Argument]]
) -> tuple[tuple[Argument, ...], tuple[Argument, ...]]:
    """The answers that speak for a suspect, and against it; what crosses it and is well comes first."""
    bad = tuple(shown for crosses, is_bad, shown in answers if is_bad and one in crosses)
    well = [shown for crosses, is_bad, shown in answers if not is_bad and one in crosses]
    spared = [_not_across(shown) for crosses, is_bad, shown in answers if is_bad and one not in crosses]
    against = tuple([*well, *spared][:_SHOWN])
    named = doubt.finding.component
    if not against and named.side and one != named:
        against = (Argument(Fact.KNOWN_SIDE, (str(named),)),)
    return bad[:_SHOWN], against


def _not_across(shown: Argument) -> Argument:
    return Argument(shown.fact, shown.about, shown.figures | {"crosses": 0.0})


def _standing(one: Component, left: Sequence[Component]) -> Standing:
    if one not in left:
        return Standing.DROPPED
    return Standing.ALTERNATIVE if one != left[0] else Standing.NAMED


def swept_hypotheses(suspects: Collection[Component], sweep: ProbeSweep) -> list[Hypothesis]:
    """NICs that a sweep shows to be slow, by the shares of their rate that its transfers came to."""
    found = []
    for one in suspects:
        ends = {"tx": (0,), "rx": (1,)}.get(one.side, (0, 1))
        shown = tuple(
            Argument(Fact.SWEPT, (probe.source, probe.destination), {"share": share})
            for probe, share in zip(sweep.probes, sweep.shares, strict=True)
            if one.name in {(probe.source, probe.destination)[end] for end in ends}
        )
        found.append(Hypothesis(one, Standing.NAMED, shown))
    return found
