"""The confidence of a finding is how often such findings named the right component in campaigns."""

import pytest

from c4bench.c4d.confidence import SEEN, confidence
from c4bench.model.diagnosis import Cause


def test_what_was_never_seen_is_a_draw():
    """Without counts a component is as likely as each of the others, and never quite sure alone."""
    found = [confidence(Cause.CONNECTION_LOST, "nic", others) for others in (0, 1, 3)]
    assert found == pytest.approx([0.8, 0.5, 0.25])


def test_what_was_seen_has_its_share():
    """A stalled link with one alternative was right in 18 of 39; one more, half right, makes it 0.46."""
    assert SEEN[Cause.CONNECTION_STALLED, "link"][1] == (18, 39)
    assert confidence(Cause.CONNECTION_STALLED, "link", 1) == pytest.approx(18.5 / 40)


def test_what_probes_left_is_likelier():
    """A NIC or its cable that probes have left is more often right than the same without probes; never seen, too."""
    for cause, kind, others in [(Cause.CONNECTION_STALLED, "nic", 1), (Cause.CONNECTION_LOST, "link", 1)]:
        assert confidence(cause, kind, others, probed=True) > confidence(cause, kind, others) + 0.05


def test_more_others_never_pass_for_fewer():
    """Two to five others are counted together, and six are counted with more."""
    stalled = [confidence(Cause.CONNECTION_STALLED, "path", others) for others in (0, 1, 2, 5, 6, 60)]
    assert stalled[2] > stalled[3]
    assert stalled[4] > stalled[5]
    assert max(stalled[2:]) < 0.2 < stalled[1] < stalled[0]


def test_a_chance_is_within_its_bounds():
    """Whatever was counted, a finding is neither certain nor impossible."""
    for cause, kind in SEEN:
        assert all(0 < confidence(cause, kind, others) < 1 for others in range(20))
