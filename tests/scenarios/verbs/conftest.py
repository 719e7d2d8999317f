"""Two NICs on two hosts, each with a console that opens endpoints on it."""

import json

import msgspec
import pytest

from c4bench import remote

_ANSWER_WITHIN_S = 100.0  # a ConnectX takes a minute to give up a peer with the settings of NCCL


class RefusedError(Exception):
    """What a console answers instead of doing as it is told."""


class Console:
    """The far side of `python -m c4bench.verbs.endpoint_console` on a host."""

    def __init__(self, nic, session):
        self.nic = nic
        self._session = session

    def __call__(self, do, **arguments):
        self._session.write_line(json.dumps({"do": do} | arguments))
        answer = json.loads(self._session.read_line(_ANSWER_WITHIN_S))
        if "error" in answer:
            raise RefusedError(answer["error"])
        return answer["answer"]


@pytest.fixture
def consoles(inventory, rdma_hosts):
    """A console for the first NIC of the first and of the last host, so that they are as far apart as can be."""
    opened = []
    for host in (rdma_hosts[0], rdma_hosts[-1]):
        access, nic = inventory.access[host.name], host.nics[0]
        connection = remote.connect(host.name, access)
        nic_json = msgspec.json.encode(nic).decode()
        session = connection.start([access.python, "-m", "c4bench.verbs.endpoint_console", nic_json])
        opened.append((connection, session, Console(nic, session)))
    yield [console for *_, console in opened]
    for connection, session, _ in opened:
        session.close()
        connection.close()


@pytest.fixture
def pair(consoles):
    """Both ends with an endpoint each: (near console, far console, near end, far end)."""
    near, far = consoles
    return near, far, near("open"), far("open")


@pytest.fixture
def refused():
    """What a console raises."""
    return RefusedError
