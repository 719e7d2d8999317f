"""Signs that other distributions add."""

import logging

from c4bench.attribution.weigh import Observation, crossed
from c4bench.c4d.signs.added import AddedSigns, JobSpan
from c4bench.model.diagnosis import Component

CELLS = [(f"h{a}/0", f"h{b}/0", "49153") for a in range(4) for b in range(4) if a != b]


def spans(count):
    """That many spans in which nothing but the cells' costs is known."""
    return [JobSpan(number, number + 1, dict.fromkeys(CELLS, 1e-9), {}, {}) for number in range(count)]


def accusing(bad):
    """A sign that finds the flows of this NIC bad in spans for which `bad(opened_s)` holds."""
    return lambda: (
        lambda span: [Observation(c, crossed(c), float(bad(span.opened_s) and c[0] == "h1/0")) for c in span.costs]
    )


def test_a_component_is_found_once_a_sign_accuses_it_in_three_spans_in_a_row():
    """Two spans, a good one, and two more are chance; the third in a row names the NIC's side since their first."""
    signs = AddedSigns({"mine": accusing(lambda opened_s: opened_s != 2)})
    found = [signs.find(span) for span in spans(6)]
    assert [len(one) for one in found] == [0, 0, 0, 0, 0, 1]
    assert (found[5][0].component, found[5][0].onset_s) == (Component("nic", "h1/0", "tx"), 3)


def test_a_sign_that_fails_says_nothing_and_is_reported_once(caplog):
    """Its error is logged the first time; a sign beside it is heard all the same."""

    def failing(_span):
        raise ValueError("no such counter")

    signs = AddedSigns({"broken": lambda: failing, "mine": accusing(lambda _: True)})
    with caplog.at_level(logging.WARNING):
        found = [one for span in spans(3) for one in signs.find(span)]
    assert [one.component.name for one in found] == ["h1/0"]
    assert sum("sign 'broken' failed" in line for line in caplog.messages) == 1
