"""Pause storms: the frames that are sent, for as long as asked for, and what their witness takes for one."""

import time

import msgspec
import pytest
from fakes import NIC, nic_request, target

from c4bench.errors import UnhealthyError
from c4bench.inject import interfaces, pause_frames
from c4bench.inject.drivers import pauses as driver
from c4bench.inject.pause_frames import Pauses, frame, send
from c4bench.inject.witness import pauses as paused
from c4bench.inject.witness.echo import Echoes, EchoReply
from c4bench.model.fault import FaultRequest

MAC = bytes.fromhex("02c401010001")
STORM = {"priority": 3, "shortest_s": 0.01, "longest_s": 0.01, "duty": 1}


def test_a_frame_is_that_of_the_standard():
    """Annex 31D of IEEE 802.3: the address that no bridge forwards, opcode 0101, a bit and quanta of each priority."""
    sent = frame(MAC, 3, 0xABCD)
    assert (
        sent.hex()
        == "0180c2000001" + MAC.hex() + "8808" + "0101" + "0008" + "0000" * 3 + "abcd" + "0000" * 4 + "00" * 26
    )


class Clock:
    """A socket and a clock on which only sleeping takes time: `sent` are quanta, by when they were sent."""

    def __init__(self, monkeypatch):
        self.now_s, self.sent = 100.0, []
        monkeypatch.setattr(pause_frames.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(pause_frames.time, "sleep", self._sleep)

    def _sleep(self, time_s):
        self.now_s += time_s

    def getsockname(self):
        return "h5n0", 0, 0, 1, MAC

    def send(self, data):
        self.sent.append((self.now_s, int.from_bytes(data[24:26], "big")))

    def stopped_s(self, rate_bps):
        """For how long the other end stood still; a frame replaces the one before."""
        ends = [*(at_s for at_s, _ in self.sent[1:]), float("inf")]
        quanta_s = 512 / rate_bps
        return sum(min(end_s - at_s, quanta * quanta_s) for (at_s, quanta), end_s in zip(self.sent, ends, strict=True))


@pytest.mark.parametrize(("shortest_s", "longest_s", "duty"), [(0.01, 0.01, 1.0), (0.0001, 0.01, 0.25)])
def test_pauses_take_their_share_of_the_time(monkeypatch, shortest_s, longest_s, duty):
    """The other end stands still for `duty` of the time, without a gap at 1, and goes on in the end."""
    rate_bps, clock = 10e9, Clock(monkeypatch)
    pauses = Pauses(("h5n0",), rate_bps, 3, shortest_s, longest_s, duty, "h5/0")
    send(pauses, [clock], lambda: clock.now_s < 105.0)
    assert clock.sent[-1][1] == 0
    assert clock.stopped_s(rate_bps) == pytest.approx(5.0 * duty, rel=0.001 if duty == 1 else 0.1)


@pytest.fixture
def ports(tmp_path, monkeypatch):
    """What the lab says of h5n0: priority 3 is lossless."""
    file = tmp_path / "pfc"
    file.write_text("h5n0 settings rate 10000000000 lossless 8 xoff 200000\nh5n0 priority 3 rx_pause 0\n")
    monkeypatch.setattr(driver, "_LAB_PORTS", file)
    monkeypatch.setattr(interfaces, "hardware", lambda _: "rxe")


@pytest.mark.usefixtures("ports")
def test_a_storm_is_sent_until_its_file_is_gone_or_its_lease_ends():
    """The revert deletes the file, and the process ends by itself with the lease."""
    plan = driver.storm(nic_request("nic.pause_storm", **STORM), target())
    (started,), (deleted,) = plan.apply, plan.revert
    assert started.path == deleted.path
    assert started.deadline_s == pytest.approx(time.monotonic() + 30.0, abs=5)
    assert started.pauses.rate_bps == NIC.rate_bps
    assert str(started) == "send pause frames of priority 3 by h5n0: all the time"


@pytest.mark.usefixtures("ports")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"priority": 4}, "no flow control of priority 4"),
        ({"shortest_s": 0.02}, "shortest_s is 0.02, more than longest_s"),
    ],
)
def test_a_storm_that_could_do_nothing_is_refused(change, words):
    """A priority that the link does not pause, and lengths that contradict each other."""
    with pytest.raises(UnhealthyError, match=words):
        driver.storm(nic_request("nic.pause_storm", **STORM | change), target())


def train(lost=(), late=(), late_s=0.005):
    """A hundred probes in 0.3 s, answered after 10 us unless they are `lost`, or `late` by so much."""
    sent_s = [100 + number * 0.003 for number in range(100)]
    trips_s = [10e-6 + (late_s if number in late else 0.0) for number in range(100)]
    return Echoes(
        sent_s,
        [
            EchoReply(number, sent_s[number], sent_s[number] + trips_s[number])
            for number in range(100)
            if number not in lost
        ],
    )


DATA_CLASS = 26 << 2
TARGET = msgspec.structs.replace(NIC, dscp=26)
OTHER = msgspec.structs.replace(TARGET, index=1, device="h5r1", address="10.2.1.1")


@pytest.fixture
def classes(monkeypatch, tmp_path):
    """The trains that the witness gets from the host's other NIC to the target, by traffic class."""

    class Prober:
        plane = "rdma"

        def __init__(self, sender, nic, traffic_class):
            assert (sender, nic) == (OTHER, TARGET)
            self._class = traffic_class

        def train(self, count, gap_s=0.0):
            assert (count, gap_s) == (100, pytest.approx(0.003))
            return trains[self._class]

    trains = {DATA_CLASS: train(), 0: train()}
    monkeypatch.setattr(paused, "CONNECTION_MANAGER", tmp_path)
    monkeypatch.setattr(paused, "RdmaProber", Prober)
    return trains


def storm_on(nic, *others, **parameters):
    """The request for a storm by a NIC of a host with these others."""
    return FaultRequest("nic.pause_storm", "h5", nic, parameters=STORM | parameters, nics=(nic, *others))


@pytest.mark.usefixtures("classes")
@pytest.mark.parametrize(
    ("nic", "others", "words"), [(TARGET, (), "no other NIC"), (NIC, (OTHER,), "give the NIC a dscp")]
)
def test_a_storm_that_could_not_be_seen_is_refused(nic, others, words):
    """A NIC that is alone in its plane, and data that has no priority of its own."""
    with pytest.raises(UnhealthyError, match=words):
        paused.pauses(storm_on(nic, *others))


@pytest.mark.parametrize(
    ("duty", "data", "other", "seen"),
    [
        (1, train(lost=range(100)), train(), True),
        (1, train(), train(), False),  # nothing happens
        (1, train(lost=range(100)), train(lost=range(100)), False),  # the link is dead for all
        (1, train(lost=range(20)), train(), False),
        (0.2, train(late=range(0, 100, 10)), train(), True),
        (0.2, train(late=range(0, 100, 10), late_s=0.0005), train(), False),  # later by less than pauses are long
        (0.2, train(late=range(2)), train(), False),
    ],
)
def test_a_storm_is_seen_by_packets_of_its_priority_alone(classes, duty, data, other, seen):
    """Many of the data's packets are late or lost, and none of another class; afterwards they are in time again."""
    witness = paused.pauses(storm_on(TARGET, OTHER, duty=duty))
    assert witness.before() == {"late": 0, "late_other": 0}
    classes.update({DATA_CLASS: data, 0: other})
    assert (witness.during(0.0).observed_s is not None) is seen
    classes.update({DATA_CLASS: train(), 0: train()})
    assert witness.after().recovered is True


def test_the_only_nic_of_a_host_is_probed_by_echo_replies_of_the_class(monkeypatch):
    """The peer's kernel answers in the class of the request, and what is looked at is said to be IP."""
    made = []

    class Prober:
        plane = "ip"

        def __init__(self, found, peer, traffic_class):
            made.append((found.interface, peer, traffic_class))

    monkeypatch.setattr(paused, "Prober", Prober)
    monkeypatch.setattr(interfaces, "examine", lambda _: target())
    asked = msgspec.structs.replace(storm_on(TARGET), peers=(OTHER,))
    assert paused.pauses(asked).plane == "ip"
    assert made == [(NIC, OTHER.address, DATA_CLASS), (NIC, OTHER.address, 0)]
