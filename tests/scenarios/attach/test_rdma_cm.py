"""Programs that connect by rdma_cm, as they are."""

import re
from typing import NamedTuple

import pytest

from c4bench import remote
from c4bench.units import payload_bound

WITHIN_S = 30.0
READY = "for each in $(seq 100); do if {}; then exit 0; fi; sleep 0.05; done; exit 1"
RDMA_CM = "rdma resource show cm_id | grep -q LISTEN"
TCP = "ss -Htln 'sport = :19765' | grep -q LISTEN"


class Program(NamedTuple):
    """A server and a client of one Debian package; `{}` is the address of the server's NIC.

    `ready` is what says on the server's host that the client may come.
    """

    package: str
    server: str
    ready: str
    client: str


PROGRAMS = {
    "rping": Program("rdmacm-utils", "rping -s -a {} -C 10", RDMA_CM, "rping -c -a {} -C 10 -v -V"),
    "qperf": Program("qperf", "qperf", TCP, "qperf -t 1 -cm 1 {} rc_bw"),
}


@pytest.fixture
def said(rdma_hosts, inventory):
    """What a program's client on the first host says, with the server on the last."""
    near, far = rdma_hosts[0], rdma_hosts[-1]

    def run(name):
        program = PROGRAMS[name]
        address = far.nics[0].address
        with (
            remote.connect(near.name, inventory.access[near.name]) as client,
            remote.connect(far.name, inventory.access[far.name]) as server,
        ):
            for connection, host in ((client, near), (server, far)):
                if connection.run(["sh", "-c", f"command -v {name}"], timeout_s=WITHIN_S, check=False).code:
                    pytest.skip(f"no-{name}: {host.name} has none: run apt-get install {program.package}")
            serving = server.start(["sh", "-c", f"{program.server.format(address)} & read end; kill $!"])
            try:
                server.run(["sh", "-c", READY.format(program.ready)], timeout_s=WITHIN_S)
                return client.run(program.client.format(address).split(), timeout_s=WITHIN_S).stdout.decode()
            finally:
                serving.close()

    return run


def test_rping(said):
    """Each ping comes back as it was sent, which rping checks."""
    assert said("rping").count("ping data: rdma-ping-") == 10


@pytest.mark.nightly  # a second at line rate
def test_qperf(said, rdma_hosts, measure):
    """The bandwidth that qperf finds is what the slower of the two NICs carries."""
    rate = re.search(r"bw *= *([0-9.]+) ([MG])B/sec", said("qperf"))
    bps = 8 * float(rate[1]) * {"M": 1e6, "G": 1e9}[rate[2]]
    bound = payload_bound(min(host.nics[0].rate_bps for host in (rdma_hosts[0], rdma_hosts[-1])))
    assert bps <= 1.005 * bound
    measure("attach.payload_fraction", bps / bound, at_least=0.99, program="qperf")
