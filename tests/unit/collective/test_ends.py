"""The receiving end of a connection over several QPs."""

import numpy as np
import pytest

from c4bench.collective.ends import Arrival, Message, cut_staging
from c4bench.collective.memory import Buffer
from c4bench.collective.recorder import ConnName
from c4bench.collective.silence import Silence
from c4bench.collective.ways import Way, WayInlet, WayOutlet
from c4bench.collective.wire import MAILBOX_BYTES, Grant, ReceivingEnd, SendingEnd, Signature
from c4bench.verbs.loopback import LoopbackPort, Network
from c4bench.verbs.transport import PATIENT, Remote


@pytest.fixture
def inlet():
    port = LoopbackPort(Network())
    far = [port.connection(PATIENT, 8, 200) for _ in range(2)]
    near = [port.connection(PATIENT, 8, 200) for _ in range(2)]
    for one, other in zip(near, far, strict=True):
        one.connect(Remote("::1", other.qp_num), receives=100)
        other.connect(Remote("::1", one.qp_num), receives=100)
    outbox, staging, mailbox = Buffer(port, MAILBOX_BYTES), Buffer(port, 4096), Buffer(port, MAILBOX_BYTES)
    end = SendingEnd([Remote("::1", one.qp_num) for one in far], mailbox.address, mailbox.region.rkey)
    records = [Silence().arrivals(ConnName(0, 1, "a", "b", one.qp_num)) for one in far]
    made = WayInlet(1, list(near), outbox, staging, end, records)
    made.staging = staging
    yield made
    port.close()


def test_messages_that_overtake_are_used_in_order(inlet):
    """Later messages that arrive first on another QP wait for the earlier one; then all are reduced in order."""
    into = [np.zeros(2, np.int64) for _ in range(3)]
    order = []

    def apply(target, staged):
        order.append(staged[0])
        target += staged

    cut = cut_staging(4096, 16)
    for index in range(3):
        inlet.staging.bytes[index * cut.slot_bytes : index * cut.slot_bytes + 16].view(np.int64)[:] = index + 1
    inlet.begin(Grant(5, 0, 0, 0, Signature("barrier", "", "", 0, 0)), [Arrival(a, apply) for a in into], cut)
    first, second = (connection.qp_num for connection in inlet.connections)
    assert inlet.arrived(second, 5 << 20 | 1, 0) == 0
    assert inlet.arrived(second, 5 << 20 | 2, 0) == 0
    assert inlet.arrived(first, 5 << 20 | 0, 0) == 3
    assert order == [1, 2, 3]
    assert inlet.complete


@pytest.mark.parametrize("wrong", [6 << 20, 5 << 20 | 1, 5 << 20 | 3, 5 << 20 | 0xFFFFF])
def test_messages_that_were_never_granted_are_refused(inlet, wrong):
    """Another operation's message, a repeated one and one beyond what was granted are told from a good one."""
    arrivals = [Arrival(np.zeros(2, np.int64), None) for _ in range(3)]
    inlet.begin(Grant(5, 0, 0, 0, Signature("barrier", "", "", 0, 0)), arrivals, cut_staging(4096, 16))
    qp = inlet.connections[0].qp_num
    assert inlet.arrived(qp, 5 << 20 | 1, 0) == 0
    assert inlet.arrived(qp, wrong, 0) is None


class Roomy:
    """Carries nothing, and acknowledges when it is told to."""

    def __init__(self, qp_num, room_bytes):
        self.qp_num, self.room_bytes, self.source_port, self.written = qp_num, room_bytes, 0, 0

    def write(self, *_, **__):
        self.written += 1

    def post_receive(self):
        pass


@pytest.fixture
def sending():
    """An outlet over two QPs, of which the first is to carry five times as much; each has room for four messages."""
    qps = [Roomy(qp_num, 4 * 100) for qp_num in (1, 2)]
    ways = [Way(qp, Silence().connection(ConnName(0, 1, "a", "b", qp.qp_num), 0, 0)) for qp in qps]
    port = LoopbackPort(Network())
    outlet = WayOutlet(1, ways, Buffer(port, MAILBOX_BYTES), ReceivingEnd([], 0, 0))
    outlet.begin(1, 1000, cut_staging(4096, 100))
    outlet.accept(Grant(1, 1000, 0, 0, Signature("barrier", "", "", 0, 0)))
    outlet.weigh([5, 1])
    yield outlet, *qps
    port.close()


MESSAGE = Message(0, 0, 100, 0, False, 0)


def test_a_full_qp_holds_back_nothing(sending):
    """What a QP could not send now goes by another one, which sends less later: the shares stay as told."""
    outlet, first, second = sending
    for _ in range(5):
        outlet.write(MESSAGE, 1, 0)
    assert (first.written, second.written) == (4, 1)
    for _ in range(4):
        outlet.acknowledged(1, 0)
    for _ in range(3):
        outlet.write(MESSAGE, 1, 0)
    assert (first.written, second.written) == (7, 1)


def test_a_qp_that_stood_still_is_not_given_all_that_it_has_missed(sending):
    """However much others have carried meanwhile, it makes up for what it has room for; then shares are as told."""
    outlet, first, second = sending
    for _ in range(4):
        outlet.write(MESSAGE, 1, 0)
    for _ in range(100):
        outlet.write(MESSAGE, 1, 0)
        outlet.acknowledged(2, 0)
    for _ in range(4):
        outlet.acknowledged(1, 0)
    stood_still = first.written, second.written
    for _ in range(60):
        outlet.write(MESSAGE, 1, 0)
        outlet.acknowledged(next(way.connection.qp_num for way in outlet.ways if way.outstanding), 0)
    carried = first.written - stood_still[0], second.written - stood_still[1]
    assert 50 <= carried[0] <= 55
    assert sum(carried) == 60
