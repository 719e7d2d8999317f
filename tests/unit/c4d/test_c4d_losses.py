"""What loses packets is named by what the NICs at both ends count, and by which transfers take longer for it."""

import itertools

import msgspec
from c4d_telemetry import comm, conn, op, window

from c4bench.attribution.weigh import attribute_cells
from c4bench.c4d.detector import Detector
from c4bench.c4d.observe.cell_index import CellIndex
from c4bench.c4d.observe.nic_counters import Counts
from c4bench.c4d.signs.packet_loss import PacketLoss, PacketLossDetector, loss_finding
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.recording import PathsLearnt
from c4bench.model.telemetry import ArrivalRecord, NicRecord, RankRecord

NICS = "abcd"
CELLS = [(a, b, "1") for a, b in itertools.permutations(NICS, 2)]
CALM = dict.fromkeys(CELLS, 0.0)
WAYS = CellIndex()


def _found(counts, slow, spans, *, noisy=0, rare=1, suspect=lambda _: {}):
    """What loses packets after a healthy past, of which `noisy` spans had the same counts and nothing slow.

    Something arrives over what is slow in one of `rare` spans.
    """
    losses = PacketLossDetector()
    for span in range(20):
        losses.add(WAYS.values_of(CALM), 0.0, counts if span < noisy else {}, float(span), CELLS)
    for span in range(spans):
        departures = {
            cell: 1.0 if slow(*cell[:2]) else 0.0 for cell in CELLS if span % rare == 0 or not slow(*cell[:2])
        }
        losses.add(WAYS.values_of(departures), 0.1, counts, 20.0 + span, CELLS)
    return losses.find(CELLS, suspect)


RECEIVER = {"b": Counts(0, 5, 0), "a": Counts(2, 0, 0), "c": Counts(2, 0, 0), "d": Counts(1, 0, 0)}
SENDER = {"a": Counts(6, 0, 0)} | {nic: Counts(0, 2, 0) for nic in "bcd"}


def test_a_receiver_that_gets_packets_out_of_order_is_named():
    """All who send to it send again, and packets come too early to nobody else."""
    (loss,) = _found(RECEIVER, lambda _, b: b == "b", 5)
    assert (loss.blame.component, loss.onset_s, loss.early) == (Component("nic", "b", "rx"), 20.0, 25)


def test_a_sender_whose_packets_get_lost_is_named():
    """It alone sends again, and packets come too early to all it sends to."""
    (loss,) = _found(SENDER, lambda a, _: a == "a", 5)
    assert loss.blame.component == Component("nic", "a", "tx")


def test_a_way_that_has_lost_packets_and_is_no_slower_yet_speaks_for_nobody():
    """Its few losses came in messages that had time, by chance; the NIC that all lost them at is named nevertheless."""
    (loss,) = _found(SENDER, lambda a, b: (a, b) in {("a", "b"), ("a", "c")}, 5)
    assert (loss.blame.component, loss.blame.alternatives) == (Component("nic", "a", "tx"), ())


def test_what_hardly_lets_anything_through_is_named():
    """Packets are lost span after span, though few messages arrive whose time could be taken."""
    (loss,) = _found(SENDER, lambda a, _: a == "a", 5, rare=4)
    assert loss.blame.component == Component("nic", "a", "tx")


def test_what_lets_nothing_through_is_slow_by_what_is_under_way():
    """A way that loses packets, and on which no message has ended since, is named; an idle one beside it is not."""
    slow, idle = ("a", "b", "1"), ("b", "c", "1")
    measured = {cell: 0.0 for cell in CELLS if cell not in (slow, idle)}
    counts = {"a": Counts(3, 0, 0), "b": Counts(0, 3, 0)}
    for waiting, named in (({}, []), ({slow: 1.0}, [Component("path", "a>b")]), ({idle: 1.0}, [])):
        losses = PacketLossDetector()
        for span in range(20):
            losses.add(WAYS.values_of(CALM), 0.0, {}, float(span), CELLS)
        for span in range(5):
            losses.add(WAYS.values_of(measured), 0.1, counts, 20.0 + span, CELLS, waiting)
        assert [loss.blame.component for loss in losses.find(CELLS, lambda _: {})] == named


def test_a_lossy_nic_is_found_first_though_all_its_partners_count():
    """All who exchange packets with it count, also on ways between them; what these show comes behind it."""
    counts = {"a": Counts(6, 6, 0)} | {nic: Counts(2, 2, 0) for nic in "bcd"}
    loss, *_ = _found(counts, lambda a, b: "a" in (a, b) or b == "d", 5)
    assert loss.blame.component == Component("nic", "a")


def test_a_link_is_named_by_the_ways_that_cross_it():
    """Two pairs lose packets where their ways meet; others of the same NICs do not."""
    counts = {"a": Counts(3, 0, 0), "b": Counts(0, 3, 0), "c": Counts(3, 0, 0), "d": Counts(0, 3, 0)}
    links = {cell: ("x",) if cell[:2] in {("a", "b"), ("c", "d")} else ("y",) for cell in CELLS}
    (loss,) = _found(counts, lambda a, b: (a, b) in {("a", "b"), ("c", "d")}, 5, suspect=lambda _: links)
    assert loss.blame.component == Component("link", "x")


def test_what_crosses_a_link_that_was_found_accuses_nothing_else():
    """Others leave the link, and what is left on it, with a way that may cross it, meets at a NIC: that is well."""
    counts = {nic: Counts(3, 3, 0) for nic in NICS}
    crossing = {("a", "b"), ("c", "d"), ("b", "d")}
    links = {cell: ("x",) if cell[:2] in crossing else ("y",) for cell in CELLS} | {("a", "c", "1"): ("x", "y")}
    losses = PacketLossDetector()
    for span in range(20):
        losses.add(WAYS.values_of(CALM), 0.0, {}, float(span), CELLS)
    for span in range(5):
        slow = {cell: 1.0 if cell[:2] in {*crossing, ("a", "c")} else 0.0 for cell in CELLS}
        losses.add(WAYS.values_of(slow), 0.1, counts, 20.0 + span, CELLS)
    (loss,) = losses.find(CELLS, lambda _: links)
    assert loss.blame.component == Component("link", "x")
    left = [cell for cell in CELLS if cell[:2] not in {("c", "d"), ("b", "d"), ("a", "d")}]
    assert losses.find(left, lambda _: links) == []


def test_counts_at_the_ends_of_a_lossy_links_ways_accuse_no_nic():
    """All ways to a NIC are slow, and its counts come from one across a lossy link, which is in use no more."""
    counts = {"a": Counts(3, 0, 0), "c": Counts(3, 0, 0), "d": Counts(3, 0, 0), "b": Counts(0, 9, 0)}
    links = dict.fromkeys(CELLS, ("y",)) | {("a", "b", "1"): ("x",)}
    left = [cell for cell in CELLS if cell[:2] != ("a", "b")]
    for cause, named in ((Cause.PACKETS_LOST, []), (Cause.TRANSFER_SLOW, [Component("nic", "b", "rx")])):
        losses = PacketLossDetector()
        for span in range(20):
            losses.add(WAYS.values_of(CALM), 0.0, {}, float(span), CELLS)
        for span in range(5):
            slow = {cell: float(cell[1] == "b") for cell in CELLS}
            losses.add(WAYS.values_of(slow), 0.1, counts, 20.0 + span, CELLS)
        losses.note_named((Component("link", "x"),), cause)
        assert [loss.blame.component for loss in losses.find(left, lambda _: links)] == named


def test_a_way_that_lost_packets_and_is_not_known_may_have_lost_them_on_any_link_it_may_cross():
    """All ways to a NIC lose packets, and may cross a link that no good way does: nothing tells it from the NIC."""
    asked = []

    def suspect(lossy):
        asked.append(set(lossy))
        return dict.fromkeys(CELLS, ("y",)) | dict.fromkeys(lossy, ("x", "y"))

    (loss,) = _found(RECEIVER, lambda _, b: b == "b", 5, suspect=suspect)
    assert (loss.blame.component, loss.blame.alternatives) == (Component("nic", "b", "rx"), (Component("link", "x"),))
    assert asked == [{cell for cell in CELLS if cell[1] == "b"}]


def test_what_waits_since_something_loses_packets_clears_nobody():
    """The sender's other ways carried something in the span in which it began, and nothing since: it may be the NIC."""
    counts = {"a": Counts(6, 0, 0), "b": Counts(0, 9, 0)}
    losses = PacketLossDetector()
    for span in range(20):
        losses.add(WAYS.values_of(CALM), 0.0, {}, float(span), CELLS)
    for span in range(5):
        moving = [cell for cell in CELLS if span == 0 or cell[0] != "a" or cell[1] == "b"]
        slow = {cell: 2.0 * (cell[:2] == ("a", "b")) for cell in moving}
        losses.add(WAYS.values_of(slow), 0.1, counts, 20.0 + span, CELLS)
    (loss,) = losses.find(CELLS, lambda _: {})
    assert loss.blame.suspects == (Component("nic", "a", "tx"),)


def test_a_way_that_is_hardly_slower_accuses_nobody():
    """Its NICs count for all of their ways; what is many times slower loses the packets, and those meet on a link."""
    counts = {"a": Counts(6, 0, 0), "b": Counts(0, 9, 0), "c": Counts(3, 0, 0)}
    excess = {("a", "b"): 6.0, ("c", "b"): 5.0, ("d", "b"): 0.4}
    links = {cell: ("x",) if cell[:2] in {("a", "b"), ("c", "b")} else ("y",) for cell in CELLS}
    losses = PacketLossDetector()
    for span in range(20):
        losses.add(WAYS.values_of(CALM), 0.0, {}, float(span), CELLS)
    for span in range(5):
        slow = {cell: excess.get(cell[:2], 0.0) for cell in CELLS}
        losses.add(WAYS.values_of(slow), 0.1, counts | {"d": Counts(1, 0, 0)}, 20.0 + span, CELLS)
    (loss,) = losses.find(CELLS, lambda _: links)
    assert Component("link", "x") in loss.blame.suspects


def test_both_ends_need_not_count_in_the_same_span():
    """A host's window ends when another's has just begun: the word of one of them comes a span later."""
    ends = [{"a": Counts(2, 0, 0)}, {"b": Counts(0, 2, 0)}]
    for order in (ends, ends[::-1]):
        losses = PacketLossDetector()
        for span in range(20):
            losses.add(WAYS.values_of(CALM), 0.0, {}, float(span), CELLS)
        for span in range(6):
            losses.add(WAYS.values_of(CALM | {("a", "b", "1"): 1.0}), 0.1, order[span % 2], 20.0 + span, CELLS)
        (loss,) = losses.find(CELLS, lambda _: {})
        assert loss.blame.component == Component("path", "a>b")


def test_a_moments_losses_are_no_finding():
    """Packets that were under way when a link flapped are sent again once."""
    assert _found(RECEIVER, lambda _, b: b == "b", 2) == []


def test_losses_that_are_usual_or_slow_nothing_are_no_finding():
    """A fabric that always drops a few packets is not broken, nor does it matter where no transfer takes longer."""
    assert _found(RECEIVER, lambda _, b: b == "b", 5, noisy=12) == []
    assert _found(RECEIVER, lambda *_: False, 5) == []


def test_what_is_slow_without_losses_is_not_put_off_for_one():
    """A packet that was overtaken as a fault set in makes no slowness wait that goes on without losses."""
    losses, slow = PacketLossDetector(), {cell: float(cell[1] == "b") for cell in CELLS}
    losses.add(WAYS.values_of(slow), 0.1, RECEIVER, 0.0, CELLS)
    assert losses.concerned() == {cell for cell in CELLS if cell[1] == "b"}
    losses.add(WAYS.values_of(slow), 0.1, {}, 1.0, CELLS)
    assert losses.concerned()
    losses.add(WAYS.values_of(slow), 0.1, {}, 2.0, CELLS)
    assert not losses.concerned()


def _standstill(counted="", senders=(0, 2, 3), *, arrived=False):
    """What is said of connections to rank 1 that stand still, while its NIC counts packets: too early, or again.

    Only its `senders` have something under way; if that has `arrived`, rank 1 has seen all of it.
    """
    detector, said = Detector(), []
    for tick in range(1, 45):
        now_s, still = tick / 10, tick > 20
        for rank in range(4):
            seq = min(tick, 21)
            entered_s = seq / 10 - 0.05
            peers = [peer for peer in range(4) if peer != rank]
            stuck = {peer for peer in peers if still and peer == 1 and rank in senders}
            counts = max(0, tick - 20) if counted else 0
            ends = [ArrivalRecord("world", 1, peer, f"h{peer}/0", "h1/0", 7, seq + int(still)) for peer in peers]
            own = NicRecord("h1/0", "linkup", 0, *((counts, 0) if counted == "early" else (0, counts)))
            detector.ingest_window(
                window(
                    f"h{rank}",
                    tick,
                    now_s,
                    comms=[comm(4)],
                    ranks=[RankRecord("job", rank, f"h{rank}", 100 + rank, "running")],
                    ops=[op(rank, seq, entered_s, 0.0 if still else entered_s + 0.01)],
                    conns=[
                        conn(
                            rank, peer, messages=seq, progress_s=min(now_s, 2.1) - 0.04, outstanding=int(peer in stuck)
                        )
                        for peer in peers
                    ],
                    arrivals=ends if arrived and rank == 1 else [],
                    nics=[own if rank == 1 else NicRecord(f"h{rank}/0", "linkup", counts * (rank in senders), 0, 0)],
                )
            )
        said += detector.evaluate(now_s)
    return said


def test_connections_that_still_get_packets_through_are_slow_and_not_dead():
    """Where packets come too early during a standstill some arrive: the network loses some, and it says so."""
    (lossy,) = _standstill("early")
    assert (lossy.syndrome, lossy.cause) == (Syndrome.COMMUNICATION_SLOW, Cause.PACKETS_LOST)
    assert lossy.component.name == "h1/0"
    (dead,) = _standstill()
    assert (dead.syndrome, dead.component) == (Syndrome.COMMUNICATION_HANG, Component("nic", "h1/0"))


def test_ways_that_carry_nothing_while_one_stands_still_clear_no_nic():
    """Packets are lost where others' have not come since: it may be the path, or the NIC that they all go to."""
    (found,) = _standstill("early", senders=(0,))
    assert "h1/0" in {one.name for one in found.suspects}


def test_packets_that_come_again_and_again_miss_their_acknowledgement():
    """The way there is well, and what is to blame lies on the way back."""
    for arrived in (False, True):
        (diagnosis,) = _standstill("again", arrived=arrived)
        assert diagnosis.syndrome == Syndrome.COMMUNICATION_HANG
        assert diagnosis.component.name == "h1/0"


def test_of_two_ways_of_a_pair_that_counts_cannot_tell_apart_either_may_have_lost_packets():
    """What stands still meets on a link; that its sender goes on to one of the same NICs, elsewhere, accuses no NIC."""
    ways = {(1, 1): "x", (2, 1): "x", (1, 2): "y", (3, 1): "y"}
    links = tuple(("h0/0", f"h{peer}/0", port, ("up", link, f"down {peer}")) for (peer, port), link in ways.items())
    detector, said = Detector(), []
    detector.ingest(PathsLearnt(0.0, links))
    for tick in range(1, 45):
        now_s, lost = tick / 10, max(0, tick - 20)
        seq = min(tick, 21)
        entered_s = seq / 10 - 0.05
        counts = [(lost, 0, 0), (0, lost, 0), (0, lost, 0), (0, 0, 0)]
        for rank in range(4):
            sent = [_sent(peer, port, tick, stuck=link == "x") for (peer, port), link in ways.items()]
            detector.ingest_window(
                window(
                    f"h{rank}",
                    tick,
                    now_s,
                    comms=[comm(4), comm(4, "beside")],
                    ranks=[RankRecord("job", rank, f"h{rank}", 100 + rank, "running")],
                    ops=[
                        op(rank, seq, entered_s, 0.0 if lost else entered_s + 0.01),
                        op(rank, tick, now_s - 0.05, now_s - 0.04, "beside"),
                    ],
                    conns=[] if rank else sent,
                    nics=[NicRecord(f"h{rank}/0", "linkup", *counts[rank])],
                )
            )
        said += detector.evaluate(now_s)
    (found,) = said
    assert (found.cause, found.component, found.alternatives) == (Cause.PACKETS_LOST, Component("link", "x"), ())


def _sent(peer, port, tick, *, stuck):
    """A connection of rank 0, in a communicator that stands still since the 20th tick, or in one that goes on."""
    still = stuck and tick > 20
    messages = 20 if still else tick
    one = conn(0, peer, messages=messages, progress_s=messages / 10 - 0.04, outstanding=int(still))
    return msgspec.structs.replace(one, comm="world" if stuck else "beside", qp=port, source_port=port)


def test_a_path_alone_is_suspected_with_all_that_it_crosses():
    """One flow loses packets and others that share its NICs or links do not: these are suspects all the same."""
    links = {("a", "b", "1"): ("up", "down"), ("a", "d", "1"): ("up",), ("c", "b", "1"): ("down",)}
    bad = attribute_cells({cell: float(cell == ("a", "b", "1")) for cell in CELLS}, links)
    found = loss_finding(PacketLoss(bad[0], 1.0, 5))
    assert found.component == Component("path", "a>b")
    parts = {
        Component("nic", "a", "tx"),
        Component("nic", "b", "rx"),
        Component("link", "up"),
        Component("link", "down"),
    }
    assert set(found.alternatives) == parts
    assert found.confidence < 0.3
