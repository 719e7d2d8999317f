"""Numbered packets: what arrives is counted by flow and kind, and what was overtaken or changed is told apart."""

import os
import select
import socket

import pytest

from c4bench.model.fabric import Arrived, Nic, NumberedFlow
from c4bench.verbs import numbered_packets
from c4bench.verbs.numbered_packets import ArrivalCounter, send_numbered
from c4bench.verbs.probe import ROCE_PORT

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


def test_overtaken_and_changed_packets_are_told(counter):
    """Packets behind one with a higher number are late, those in a row once; one with a flipped bit has not arrived."""
    sender = numbered_packets._open(LOOPBACK, PORT, 0)
    for number in (0, 3, 1, 2, 7, 5, 4):
        packet = numbered_packets._packet(0x11, 7, number)
        packet = packet[:-1] + bytes([packet[-1] ^ 1]) if number == 4 else packet
        numbered_packets._send(sender, NumberedFlow("127.0.0.1", PORT), packet)
    sender.close()
    assert counter.close() == (Arrived("127.0.0.1", PORT, 0, 6, 2),)
