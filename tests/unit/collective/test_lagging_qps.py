"""QPs on several paths: others carry what a slow one would have carried, and more is in flight towards the end."""

from collections import Counter, deque
from dataclasses import dataclass, field

import pytest

from c4bench.collective.channel_transfer import Stream
from c4bench.collective.endpoints import SendEndpoint
from c4bench.collective.handshake import Grant, Signature
from c4bench.collective.rail import InFlight, Message, RailName, RailQps, SendingRail

SIZE_BYTES, WINDOW, MESSAGE_NS = 1000, 16, 100
MESSAGE = Message({}, 0, SIZE_BYTES, 0, False, 0)


class Silent:
    """A QP or its record, which notes nothing."""

    qp_num = source_port = 0

    def __getattr__(self, _):
        return lambda *_, **__: None


@dataclass
class Paths:
    """Paths that take `message_ns` for a message, one after the other, and QPs on them that a sender chooses among."""

    message_ns: list[int]
    weights: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    carried: Counter = field(default_factory=Counter)

    def __post_init__(self):
        silent = Silent()
        rails = [SendingRail(RailName(0, 1, n), 0, 1e9, silent, RailQps(silent), 0) for n in range(len(self.weights))]
        for rail in rails:
            rail.record = silent
        self.sender = SendEndpoint(1, 0, rails, None, [])
        self.sender.weigh(self.weights)
        self.rails, self.now_ns = rails, 0
        self.queues = [deque() for _ in self.message_ns]
        self.free_ns = [0] * len(self.message_ns)

    def send(self, messages):
        """Send so many, at most WINDOW unacknowledged; return how long it takes in ns. QPs take paths in turn."""
        began_ns, left = self.now_ns, messages
        while left or any(self.queues):
            while left and sum(map(len, self.queues)) < WINDOW:
                rail = self.sender.own_rail(SIZE_BYTES)
                rail.write(InFlight(0, MESSAGE, 0, 0, self.now_ns), (0, 0), (0, 0), 0, self.now_ns)
                path = self.rails.index(rail) % len(self.queues)
                self.free_ns[path] = max(self.free_ns[path], self.now_ns) + self.message_ns[path]
                self.queues[path].append((self.free_ns[path], rail))
                self.carried[self.rails.index(rail)] += 1
                left -= 1
            path = min((n for n, queue in enumerate(self.queues) if queue), key=lambda n: self.queues[n][0][0])
            self.now_ns, rail = self.queues[path].popleft()
            rail.acknowledged(self.now_ns)
        return self.now_ns - began_ns


@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (3, 1, 3, 1), (1, 2, 1, 0)])
def test_qps_carry_by_their_weights_while_paths_are_as_planned(weights):
    """On paths as fast as their QPs' weights say, each QP carries its share, message for message."""
    shares = [sum(weights[path::2]) for path in (0, 1)]
    paths = Paths([MESSAGE_NS * shares[1], MESSAGE_NS * shares[0]], weights)
    paths.send(40 * sum(weights))
    assert [paths.carried[qp] for qp in range(4)] == [40 * weight for weight in weights]


@pytest.mark.parametrize("slower", [2, 4])
def test_a_lagging_qp_hands_its_messages_over_within_the_operation(slower):
    """When a path becomes slower, an operation ends nearly when both can have carried it, not when weights have it."""
    paths = Paths([MESSAGE_NS, MESSAGE_NS])
    paths.send(100)
    paths.message_ns[0] *= slower
    took_ns = paths.send(1000)
    best_ns, planned_ns = 1000 * MESSAGE_NS / (1 + 1 / slower), 500 * MESSAGE_NS * slower
    assert took_ns < min(1.04 * best_ns, 0.8 * planned_ns)


def test_the_next_operation_goes_by_the_weights_again():
    """A path that was slow during one operation carries its share of the next one."""
    paths = Paths([2 * MESSAGE_NS, MESSAGE_NS])
    paths.send(200)
    paths.message_ns[0] = MESSAGE_NS
    paths.sender.begin(1, 0, None)
    paths.carried.clear()
    paths.send(200)
    assert [paths.carried[qp] for qp in range(4)] == [50] * 4


@pytest.mark.parametrize(
    ("source_ports", "weights", "longest"),
    [((7, 7, 7, 7), (1, 1, 1, 1), 8), ((7, 8, 9, 7), (1, 1, 1, 0), 9), ((7, 7, 7, 8), (1, 1, 1, 0), 8)],
)
def test_a_connection_over_several_paths_has_more_in_flight_towards_the_end(source_ports, weights, longest):
    """In the last quarter of an operation a connection whose QPs use several paths has an eighth more in flight."""
    sender = Paths([MESSAGE_NS], weights).sender
    for rail, source_port in zip(sender.own, source_ports, strict=True):
        rail.source_port = source_port
    sender.begin(0, 40, None)
    sender.accept(Grant(0, 40, (), Signature("barrier", "", "", 0, 0)))
    stream, under_way, most = Stream([(sender, MESSAGE)] * 40, 8), 0, {}
    for sent in range(40):
        while stream.waits_for(Counter()) == "transfer":
            stream.acknowledged()
            under_way -= 1
        stream.written()
        under_way += 1
        most[sent] = under_way
    assert [most[sent] for sent in range(8, 40)] == [8] * 22 + [longest] * 10
