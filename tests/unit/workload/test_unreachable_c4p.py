"""A rank's side of planning, when the agent answers and the master behind it does not."""

import socket
import threading

import msgspec
import pytest

from c4bench.model.fabric import USUAL_QPS, Flow
from c4bench.wire.channel import frame
from c4bench.wire.messages import Answer, Call
from c4bench.wire.rank import RankLink
from c4bench.workload.agent_rendezvous import AgentRendezvous

FLOWS = tuple(Flow(f"j/j:data/0>1/0.{qp}", "j", "h0/0", "h1/0", 1e10) for qp in range(2))


@pytest.fixture
def rendezvous(tmp_path):
    """Of a rank whose agent refuses whatever is for the master."""
    path = str(tmp_path / "agent.sock")
    agent = socket.create_server(path, family=socket.AF_UNIX)

    def refuse():
        connection, _ = agent.accept()
        with connection:
            while length := connection.recv(4):
                call = msgspec.msgpack.decode(connection.recv(int.from_bytes(length)), type=Call)
                refusal = Answer(call.id, msgspec.Raw(b"\xc0"), "the master cannot be reached")
                connection.sendall(frame(msgspec.msgpack.encode(refusal)))

    answering = threading.Thread(target=refuse)
    answering.start()
    link = RankLink(path)
    yield AgentRendezvous(link, "j", path)
    link.close()
    answering.join()
    agent.close()


def test_flows_come_up_on_ecmp(rendezvous, capsys):
    """Flows are left to ECMP with a warning, and kept, so that a returning master can plan them."""
    assert rendezvous.route(FLOWS) == [0, 0]
    assert "the master cannot be reached); 2 flows run on ECMP until it does" in capsys.readouterr().err
    assert rendezvous.routed == {flow.id: (flow, 0) for flow in FLOWS}


def test_connections_close(rendezvous):
    """Releasing flows without a master is no error."""
    rendezvous.route(FLOWS)
    rendezvous.release([flow.id for flow in FLOWS])
    assert rendezvous.routed == {}


def test_connections_have_the_usual_number_of_qps(rendezvous, capsys):
    """A rank that leaves the number of QPs to C4P goes on with the usual one, with a warning."""
    assert rendezvous.choose_qps([("h0/0", "h1/0")]) == USUAL_QPS
    assert f"the master cannot be reached); connections have {USUAL_QPS} QPs" in capsys.readouterr().err
