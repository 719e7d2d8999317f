"""One channel's share of an operation: an ordered list of messages to send, and the arrivals that release them."""

from c4bench.collective.endpoints import Arrival, Message, ReceiveEndpoint, SendEndpoint, Staging
from c4bench.collective.pacer import Pacer


class ChannelTransfer:
    """Sends strictly in order with at most `window` messages unacknowledged, whichever outlets they go to.

    The order is the schedule's: a receiver that is not ready holds back what follows, so each step stays a permutation.
    `tempo` bounds how fast; what it holds back may go in `early_ns`, 0 where it holds back nothing.
    """

    def __init__(
        self,
        sends: list[tuple[SendEndpoint, Message]],
        arrivals: dict[ReceiveEndpoint, list[Arrival]],
        staging: Staging,
        targets: dict[ReceiveEndpoint, tuple[int, int]],
        window: int,
    ) -> None:
        self.sends = sends
        self.arrivals = arrivals
        self.staging = staging
        self.targets = targets
        self.arrived = 0
        self.tempo: Pacer | None = None
        self.early_ns = 0
        self._window = window
        self._next = 0
        self._outstanding = 0

    def totals(self) -> dict[SendEndpoint, int]:
        """How many messages go to each outlet."""
        totals: dict[SendEndpoint, int] = {}
        for outlet, _ in self.sends:
            totals[outlet] = totals.get(outlet, 0) + 1
        return totals

    @property
    def sent(self) -> bool:
        """Whether everything has been written and acknowledged."""
        return self._next == len(self.sends) and not self._outstanding

    def arrive(self, inlet: ReceiveEndpoint, count: int) -> None:  # noqa: ARG002  (the messages of all count alike)
        """So many messages have come on an inlet, and are used."""
        self.arrived += count

    def acknowledged(self, took_ns: int | None) -> None:
        """One message fewer is in flight; see `SendEndpoint.acknowledged`."""
        self._outstanding -= 1
        if self.tempo and took_ns is not None:
            self.tempo.acknowledged(took_ns)

    def pump(self, seq: int, now_ns: int) -> list[SendEndpoint]:
        """Write all that may be written; returns the outlets written to."""
        touched = []
        self.early_ns = 0
        while self.head_waits_for() == "":
            outlet, message = self.sends[self._next]
            if self.tempo:
                self.early_ns = self.tempo.wait_ns(now_ns)
                if self.early_ns:
                    break
                self.tempo.took(message.length, now_ns)
            outlet.write(message, seq, now_ns)
            self._next += 1
            self._outstanding += 1
            touched.append(outlet)
        return touched

    @property
    def head(self) -> SendEndpoint | None:
        """The outlet whose turn it is."""
        return self.sends[self._next][0] if self._next < len(self.sends) else None

    def head_waits_for(self) -> str:
        """What holds back the next message: data, credit, transfer (enough is on its way); idle: there is none."""
        if self._next == len(self.sends):
            return "idle"
        outlet, message = self.sends[self._next]
        if message.needs > self.arrived:
            return "data"
        if not outlet.has_credit:
            return "credit"
        return "transfer" if self._outstanding >= self._window or self.early_ns else ""
