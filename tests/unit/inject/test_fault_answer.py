"""What had a cable is itself again when somebody answers over it as in health."""

from c4bench.inject.witness.base import Aftermath, Evidence
from c4bench.inject.witness.link import PeerReachable


class Link:
    """A witness to whom all is well at once."""

    def before(self):
        return {"running": 1.0}

    def during(self, onset_s):
        return Evidence({"running": 0.0}, onset_s)

    def after(self):
        return Aftermath({"running": 1.0}, True)


def says(*words):
    """Somebody at the other end who answers as told, and goes on as at last."""
    left = list(words)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_a_link_that_is_up_is_well_only_once_somebody_answers():
    """The aftermath is reported when the neighbour has answered, however many questions it left unanswered before."""
    witness = PeerReachable(Link(), [says(True, False, False, False, True)])
    assert witness.before() == {"running": 1.0, "answers": 1.0}
    assert witness.during(3.0) == Evidence({"running": 0.0}, 3.0)
    assert witness.after() == Aftermath({"running": 1.0, "answers": 1.0}, True)


def test_a_neighbour_that_stays_silent_is_no_recovery():
    """What answered in health and does not afterwards is said to be so, with the count, when the time is up."""
    witness = PeerReachable(Link(), [says(True), says(True, False)], back_s=0.0)
    assert witness.before()["answers"] == 2.0
    assert witness.after() == Aftermath({"running": 1.0, "answers": 1.0}, False)


def test_who_did_not_answer_in_health_is_not_waited_for():
    """A cable nobody answers over, or that cannot be asked over, is judged by its link alone."""
    assert PeerReachable(Link(), []).after().recovered
    witness = PeerReachable(Link(), [says(False)])
    assert witness.before()["answers"] == 0.0
    assert witness.after() == Aftermath({"running": 1.0, "answers": 0.0}, True)
