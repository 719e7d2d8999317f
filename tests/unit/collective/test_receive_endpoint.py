"""The receiving end of a connection over several QPs."""

import numpy as np
import pytest

from c4bench.collective.endpoints import Arrival, GateCounts, ReceiveEndpoint, cut_staging
from c4bench.collective.handshake import CONGESTION_NOTICE, MAILBOX_BYTES, Grant, SendingEnd, Signature
from c4bench.collective.memory import Buffer, ChannelMemory
from c4bench.collective.rail import RailName, RailQps, ReceivingRail
from c4bench.collective.recorder import NullRecorder
from c4bench.collective.ring_layout import ConnName
from c4bench.verbs.counters import MarkedPackets
from c4bench.verbs.transport import PATIENT, Remote
from tools.loopback import LoopbackPort, Network


def memory(port, size_bytes):
    """So much memory that the NIC may reach."""
    return ChannelMemory(Buffer({0: port}, size_bytes), 0, size_bytes)


@pytest.fixture(params=[lambda _: None])
def receiver(request, tmp_path):
    port = LoopbackPort(Network())
    far = [port.connection(PATIENT, 8, 200) for _ in range(2)]
    near = [port.connection(PATIENT, 8, 200) for _ in range(2)]
    for one, other in zip(near, far, strict=True):
        one.connect(Remote("::1", other.qp_num), receives=100)
        other.connect(Remote("::1", one.qp_num), receives=100)
    outbox, staging, mailbox = (memory(port, size) for size in (MAILBOX_BYTES, 4096, MAILBOX_BYTES))
    end = SendingEnd([Remote("::1", one.qp_num) for one in far], mailbox.address, mailbox.rkey(0))
    rails = [ReceivingRail(RailName(1, 0, index), 0, port, RailQps(qp), 100) for index, qp in enumerate(near)]
    for rail in rails:
        rail.record = NullRecorder().arrivals(ConnName(0, 1, "a", "b", 0))
    job = ReceiveEndpoint(1, 0, rails, outbox, staging, [end], marks=request.param(tmp_path))
    job.staging, job.port = staging, port
    yield job
    port.close()


def begin(receiver, arrivals, staging, passed=None):
    """Start operation 5."""
    template = Grant(5, 0, ((0, 0),), Signature("barrier", "", "", 0, 0))
    receiver.begin(template, arrivals, staging, GateCounts() if passed is None else passed)


def test_messages_that_overtake_are_used_in_order(receiver):
    """Later messages that arrive first on another QP wait for the earlier one; then all are reduced in order."""
    into = [np.zeros(2, np.int64) for _ in range(3)]
    order = []

    def apply(target, staged):
        order.append(staged[0])
        target += staged

    cut = cut_staging(4096, 16)
    for index in range(3):
        receiver.staging.bytes[index * cut.slot_bytes : index * cut.slot_bytes + 16].view(np.int64)[:] = index + 1
    begin(receiver, [Arrival(a, apply) for a in into], cut)
    assert receiver.arrived(5 << 20 | 1, 0)
    assert receiver.arrived(5 << 20 | 2, 0)
    assert order == []
    assert receiver.arrived(5 << 20 | 0, 0)
    assert order == [1, 2, 3]
    assert receiver.complete


def test_a_message_waits_for_those_of_other_receivers(receiver):
    """A message that is to be used after others is kept until these have been used, and so are those behind it."""
    passed = GateCounts()
    arrivals = [Arrival(np.zeros(2, np.int64), None, gate=(1,), after=(0,), needs=number) for number in (1, 0, 2)]
    begin(receiver, arrivals, cut_staging(4096, 16), passed)
    assert all(receiver.arrived(5 << 20 | index, 0) for index in range(3))
    assert (passed[1,], receiver.use_arrived()) == (0, False)
    passed[0,] += 1
    assert (receiver.use_arrived(), passed[1,], receiver.complete) == (True, 2, False)
    passed[0,] += 1
    assert (receiver.use_arrived(), passed[1,], receiver.complete) == (True, 3, True)


@pytest.mark.parametrize("wrong", [6 << 20, 5 << 20 | 1, 5 << 20 | 3, 5 << 20 | 0xFFFFF])
def test_messages_that_were_never_granted_are_refused(receiver, wrong):
    """Messages of another operation, duplicates, and those beyond the grant are rejected."""
    arrivals = [Arrival(np.zeros(2, np.int64), None) for _ in range(3)]
    begin(receiver, arrivals, cut_staging(4096, 16))
    assert receiver.arrived(5 << 20 | 1, 0)
    assert not receiver.arrived(wrong, 0)


def test_a_message_sent_again_by_another_rail_is_used_once():
    """A message that was ahead, or has been used already, is counted as repeated when it comes again."""
    arrivals = [Arrival(np.zeros(2, np.int64), None) for _ in range(3)]
    receiver = ReceiveEndpoint(1, 0, [], None, None, [], resends=True)  # without a rail grants wait
    begin(receiver, arrivals, cut_staging(4096, 16))
    used = []
    for index in (1, 1, 0, 0, 1, 2):
        assert receiver.arrived(5 << 18 | index, 0)
        used.append(receiver.progress().consumed)
    assert used == [0, 0, 2, 2, 2, 3]
    assert receiver.repeated == 3
    assert receiver.complete


def counting(folder):
    """The marked packets of a host, by a file like the kernel's, which says 7 at first."""
    count(folder, 7)
    return MarkedPackets(folder / "netstat")


def count(folder, marked):
    """So many packets have come marked."""
    (folder / "netstat").write_text(f"IpExt: InNoRoutes InCEPkts\nIpExt: 1 {marked}\n")


@pytest.mark.parametrize("receiver", [counting], indirect=True)
def test_the_sender_is_told_of_marked_packets(receiver, tmp_path):
    """A message that comes after marked packets has a notice sent, no more than one in 50 us and none without marks."""
    arrivals = [Arrival(np.zeros(2, np.int64), None) for _ in range(5)]
    begin(receiver, arrivals, cut_staging(4096, 16))
    notices = []
    for index, (now_ns, marked) in enumerate([(100_000, 7), (200_000, 9), (240_000, 11), (260_000, 11), (400_000, 11)]):
        count(tmp_path, marked)
        receiver.arrived(5 << 20 | index, now_ns)
        seen = [one.immediate for one in receiver.port.completions(arm=False) if one.received]
        notices.append(seen.count(CONGESTION_NOTICE))
    assert notices == [0, 1, 0, 1, 0]
