"""How `c4bench detect --explain` prints what speaks for and against each hypothesis behind a finding."""

from collections.abc import Iterator

from c4bench.model.hypothesis import Argument, Explanation, Fact, Hypothesis, Standing

# `about` is joined; figures are by their names in `Fact`.
_WORDS = {
    Fact.CELL_SLOW: "{about} takes at least {times_as_long:.2f} times as long, in {spans:.0f} spans: {enough:.2f} of "
    "the evidence that is enough",
    Fact.CELLS_SLOW: "{cells:.0f} more of its cells are slow, up to {times_as_long:.2f} times as long",
    Fact.CELLS_WELL: "{cells:.0f} cells that cross it are well, the worst takes {times_as_long:.2f} times as long",
    Fact.SLOW_AS_A_WHOLE: "as a whole: {enough:.2f} of the evidence that is enough",
    Fact.NIC_BUSY: "{about} is busy {times_as_long:.2f} times as long per byte, in {spans:.0f} spans: {enough:.2f} of "
    "the evidence that is enough",
    Fact.ONE_WAY_DELAYS: "one-way delays of {about} have grown by {sent_s:.3g} s sending and {received_s:.3g} s "
    "receiving, elsewhere by {elsewhere_s:.3g} s",
    Fact.PACKETS_LOST: "{about}: {sent_again:.0f} packets sent again by its source; {out_of_sequence:.0f} out of "
    "sequence and {duplicates:.0f} twice at its destination",
    Fact.CELLS_ELSEWHERE: "{cells:.0f} of the bad cells do not cross it",
    Fact.CELLS_LOSE_NOTHING: "{cells:.0f} cells that cross it lose nothing",
    Fact.MARKED: "{packets:.0f} packets came marked to {nics:.0f} receivers that count marks",
    Fact.LINK_FULL: "link {about} carries {share:.0%} of what it can",
    Fact.RATES_UNKNOWN: "nobody knows the rates of the {links:.0f} links that it crosses",
    Fact.TRAFFIC_ARRIVED: "other jobs' traffic arrived {times:.0f} times then",
    Fact.CONNECTIONS_MOVED: "{connections:.0f} connections of the job moved then",
    Fact.LINKS_MISSING: "{links:.0f} links are missing, {behind:.0f} of them explain it",
    Fact.LINK_MISSING: "no probe crosses link {about} since {since_s:.3f} s",
    Fact.MISSED_WITH: "missing as well: {about}",
    Fact.WAITED_FOR: "{ranks:.0f} ranks wait for it, directly or through others: {about}",
    Fact.INSIDE: "{about}: is inside",
    Fact.NOT_ENTERED: "{about} has not entered the operation",
    Fact.STOOD_STILL: "nothing moved for {stood_still_s:.2f} s; a benign stall lasts {benign_s:.2f} s at most",
    Fact.PROCESS: "the process of {about}",
    Fact.PORT: "the port of {about}",
    Fact.HEARD: "{about} was last heard {ago_s:.2f} s before",
    Fact.CONNECTION_STALLED: "{about}: {outstanding:.0f} messages unacknowledged for {still_s:.2f} s",
    Fact.CELLS_CARRY: "{cells:.0f} connections that cross it carried something afterwards",
    Fact.ENDED: "the process of {about} was seen dead at {ended_s:.3f} s",
    Fact.SAID: "the word of {about}",
    Fact.CALLED: "{about} #{sequence:.0f}, {size_bytes:.0f} bytes",
    Fact.LATE: "{about} is late by {share:.1%} of the usual time of computing, over {operations:.0f} operations",
    Fact.TRAINS: "{slow:.0f} of {trains:.0f} packet trains were slow on {about}",
    Fact.NUMBERED_PACKETS: "of {sent:.0f} numbered packets on {about} {lost:.0f} were lost, {late:.0f} times overtaken",
    Fact.EXPIRING_PACKETS: "packets that expired behind {about} met silence",
    Fact.KNOWN_SIDE: "the job's own delays accused {about} before",
    Fact.SWEPT: "a transfer on its own, {about}, came to {share:.0%} of its NICs' rate",
    Fact.PAUSED: "{about} has stopped its switch's port for {share:.0%} of the time",
}
_ANSWERED = "packets that expired behind {about} were answered"
_STANDINGS = {Standing.NAMED: "", Standing.ALTERNATIVE: ", as likely", Standing.DROPPED: ", dropped"}


def explained_lines(explanation: Explanation) -> Iterator[str]:
    """The counts behind the confidence, and each hypothesis with its arguments, a line each."""
    if explanation.seen:
        yield f"{explanation.right} of {explanation.seen} findings like this were right"
    elif explanation.diagnosis:
        yield "no finding like this was counted before"
    for hypothesis in explanation.hypotheses:
        yield from _hypothesis(hypothesis)


def _hypothesis(one: Hypothesis) -> Iterator[str]:
    yield f"> {str(one.what).replace('_', ' ')}{_STANDINGS[one.standing]}"
    yield from (f"    + {_sentence(fact)}" for fact in one.speaks_for)
    yield from (f"    - {_sentence(fact)}" for fact in one.speaks_against)
    if not (one.speaks_for or one.speaks_against):
        yield "    nothing was seen that speaks for or against it"


def _sentence(fact: Argument) -> str:
    words = _ANSWERED if fact.figures.get("answered") else _WORDS[fact.fact]
    sentence = words.format(about=" ".join(fact.about), **fact.figures)
    return sentence if fact.figures.get("crosses", 1.0) else f"{sentence}, and do not cross it"
