"""Bugs to plant in the collectives: each function breaks one thing, in the process of the rank that calls it.

Those of resilient communicators are latent: until a NIC is lost nothing goes another way than before.
"""

from c4bench.collective.endpoints import ReceiveEndpoint, SendEndpoint
from c4bench.collective.engine import EndOnFailure
from c4bench.collective.errors import FailureGuard
from c4bench.collective.rail import RailState, ReceiveProgress, SendingRail
from c4bench.collective.rail_protocols import Repair


def repeated_from_the_senders_oldest():
    """The sender repeats all that it has no acknowledgement for, and the receiver takes what comes for the next."""
    ReceiveProgress.has = lambda *_: False
    used_in_the_order_of_arrival()


def used_in_the_order_of_arrival():
    """The receiver takes what comes for the next message, whatever its number."""

    def arrived(self, _immediate, _now_ns):
        if self._consumed < self._total:
            self._ahead.add(self._consumed)
            self.use_arrived()
        return True

    ReceiveEndpoint.arrived = arrived


def repeated_grant_too_large():
    """A grant that is sent again after a loss allows all messages, though there are fewer slots."""

    def resend_grant(self):
        if not self.complete:
            self._granted = self._total
            self._send_grant(self._template._replace(limit=self._total))

    ReceiveEndpoint.resend_grant = resend_grant


def completion_handled_twice():
    """A write that failed counts twice: its message, and the one behind it, are sent again."""
    lose = SendingRail.lose

    def twice(self):
        lose(self)
        if self.lost and self.lost[-1] is not None:
            self.lost.append(self.lost[-1])

    SendingRail.lose = twice


def buffer_given_back_early():
    """The sender's operation may end while messages of it are to be sent again, from a buffer that is reused."""
    resend = Repair._resend_lost

    def forgive(self, operation, edge, rail, now_ns):
        for sent in rail.lost[len(getattr(rail, "forgiven", ())) :]:
            operation.acknowledged(edge.senders[sent.channel], None)
        rail.forgiven = list(rail.lost)
        resend(self, operation, edge, rail, now_ns)

    Repair._resend_lost = forgive


def assumed_delivered():
    """What was in flight on a lost NIC counts as received."""
    ReceiveProgress.has = lambda *_: True


def one_too_many_reported():
    """The receiver reports a message more than it has received."""
    progress = ReceiveEndpoint.progress

    def more(self):
        true = progress(self)
        return ReceiveProgress(true.seq, true.consumed + 1, true.ahead)

    ReceiveEndpoint.progress = more


def repair_forgotten():
    """Messages that were lost with a NIC are not sent again."""
    SendEndpoint.resend = lambda self, sent, now_ns: True  # noqa: ARG005


def old_slot_read():
    """After a loss the receiver reads the slot before the one that a message came into."""
    slot = ReceiveEndpoint._slot

    def before(self, index, like):
        lost = any(rail.state is not RailState.UP for rail in self.rails)
        return slot(self, index - 1 if lost and index else index, like)

    ReceiveEndpoint._slot = before


def errors_ignored():
    """A connection's failure ends nothing."""
    EndOnFailure.failed = lambda self, edge, rail, completion, now_ns: None  # noqa: ARG005


def failure_kept_secret():
    """A rank that fails tells nobody."""

    def silent(self, error):  # noqa: ARG001
        self.broken = True

    FailureGuard.abandon = silent
