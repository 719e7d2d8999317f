"""Numbered packets: what arrives is counted by flow and kind, and what was overtaken or changed is told apart."""

import os
import select
import socket
import time

import msgspec
import pytest

from c4bench.errors import C4Error
from c4bench.model.fabric import Arrived, HopProbe, Nic, NumberedFlow
from c4bench.verbs import numbered_packets
from c4bench.verbs.numbered_packets import ArrivalCounter, send_numbered
from c4bench.verbs.probe import ROCE_PORT, open_sender, send_waiting

LOOPBACK = Nic("h0", 0, "", "lo", "127.0.0.1", 1e10)
PORT = 50123


@pytest.fixture
def counter():
    """A counter on the loopback interface, which takes the right to capture."""
    if os.geteuid() != 0:
        pytest.skip("needs CAP_NET_RAW")
    return ArrivalCounter(LOOPBACK, 7)


def test_what_arrives_is_counted_by_flow_and_kind(counter):
    """Each flow's data and acknowledgements are counted; packets of other tokens and other traffic are not."""
    flows = [NumberedFlow("127.0.0.1", PORT), NumberedFlow("127.0.0.1", PORT + 1)]
    send_numbered(LOOPBACK, flows, 20, 7, 10_000.0)
    send_numbered(LOOPBACK, flows[:1], 5, 8, 10_000.0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.sendto(b"x" * 28, ("127.0.0.1", ROCE_PORT))
    assert select.select([counter.socket], [], [], 1.0)[0]
    assert counter.close() == (Arrived("127.0.0.1", PORT, 20, 20, 0), Arrived("127.0.0.1", PORT + 1, 20, 20, 0))


def test_trains_are_timed_apart_from_other_packets(counter):
    """A train that arrives whole has its delay and its spread; its packets count neither as data nor as lost."""
    flow = NumberedFlow("127.0.0.1", PORT)
    began_s = time.time()
    send_numbered(LOOPBACK, [flow], 3, 7, 1000.0, train_bytes=65536)
    send_numbered(LOOPBACK, [flow], 2, 7, 1000.0)
    lasted_s = time.time() - began_s
    (arrived,) = counter.close()
    assert (arrived.data, arrived.acks, arrived.late, len(arrived.trains)) == (2, 2, 0, 3)
    for train in arrived.trains:
        assert 0 < train.delay_s < lasted_s
        assert 0 < train.s_per_byte < lasted_s / 60000


def test_trains_that_lose_a_packet_or_change_one_are_left_out(counter):
    """Of three trains one lacks a packet and one has a flipped bit: only the third has arrived whole."""
    sender = open_sender(LOOPBACK, PORT, 0, answers=False)
    for number in range(3):
        packets = numbered_packets._packets(LOOPBACK, 0x04, 7, number, 65536)
        if number == 0:
            del packets[5]
        if number == 1:
            packets[5] = packets[5][:30] + bytes([packets[5][30] ^ 1]) + packets[5][31:]
        for packet in packets:
            send_waiting(sender, HopProbe("127.0.0.1", PORT, 64), packet)
    sender.close()
    assert [len(one.trains) for one in counter.close()] == [1]


def test_a_train_has_packets_that_fit_the_interface(monkeypatch):
    """Packets fill the MTU but for headers, and a path MTU of 4096 at most; there are as many as the train needs."""
    monkeypatch.setattr(numbered_packets, "_mtu_bytes", lambda _: 1500)
    assert {(one.size, one.length) for one in numbered_packets.new_train(LOOPBACK, 65536)} == {(1472, 45)}
    monkeypatch.undo()
    assert {(one.size, one.length) for one in numbered_packets.new_train(LOOPBACK, 65536)} == {(4096, 16)}


def test_an_interface_without_mtu_is_an_error():
    """A NIC whose interface has gone sends no train, and says so."""
    gone = msgspec.structs.replace(LOOPBACK, netdev="gone0")
    with pytest.raises(C4Error, match="cannot read the MTU of gone0"):
        numbered_packets.new_train(gone, 65536)


def test_overtaken_and_changed_packets_are_told(counter):
    """Packets behind one with a higher number are late, those in a row once; one with a flipped bit has not arrived."""
    sender = open_sender(LOOPBACK, PORT, 0, answers=False)
    for number in (0, 3, 1, 2, 7, 5, 4):
        packet = numbered_packets._packet(0x11, 7, number)
        packet = packet[:-1] + bytes([packet[-1] ^ 1]) if number == 4 else packet
        send_waiting(sender, HopProbe("127.0.0.1", PORT, 64), packet)
    sender.close()
    assert counter.close() == (Arrived("127.0.0.1", PORT, 0, 6, 2),)
