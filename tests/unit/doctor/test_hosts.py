"""What `doctor` says about hosts, on answers of every kind."""

import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from c4bench.cli.doctor import Answered
from c4bench.doctor import overview
from c4bench.doctor.capabilities import State
from c4bench.doctor.hosts import look_at, ring
from c4bench.inventory import load
from c4bench.remote import connect
from c4bench.remote.local import LocalConnection, ProcessSession


@pytest.fixture
def inventory(tmp_path):
    path = tmp_path / "hosts.yml"
    nics = "[{device: mlx5_none, netdev: lo, address: 127.0.0.1, rate: 1gbit}]"
    path.write_text(
        f"all: {{hosts: {{here: {{ansible_connection: local, c4: {{python: /bin/false, nics: {nics}}}}},\n"
        f"  there: {{ansible_connection: local, c4: {{nics: [{{netdev: lo, address: 127.0.0.1}}]}}}}}}}}"
    )
    return load(path)


def states(report):
    return {one.name: one.state for one in report.capabilities}


def test_each_thing_is_looked_at_by_itself(inventory):
    """A host without agent and NIC is reachable all the same; what is missing is named, with its fix."""
    report, other = look_at(inventory)
    found = states(report)
    assert found["reachable"] is found["clock"] is State.REAL
    assert found["agents"] is found["rdma"] is State.ABSENT
    assert "lacks mlx5_none" in report.lacks("rdma").detail
    assert all(one.fix for one in report.bad)
    assert states(other).keys() == found.keys()


def test_hosts_are_shown_as_they_answer(inventory, capsys):
    """A frozen host holds up nobody: what others said is shown, and who is waited for."""
    frozen, shown = threading.Event(), threading.Event()

    def reach(host, access):
        if host == "here":
            assert frozen.wait(60)
        return connect(host, access)

    answered = Answered(["here", "there"])

    def show(report):
        answered(report)
        shown.set()

    with ThreadPoolExecutor() as beside:
        looking = beside.submit(look_at, inventory, reach, show)
        assert shown.wait(60)
        assert not looking.done()
        line = capsys.readouterr().err
        assert line.startswith("there: BAD agents: ")
        assert line.endswith("; waiting for here\n")
        frozen.set()
        looking.result()
    assert "waiting" not in capsys.readouterr().err


def test_the_path_mtu_is_probed(inventory):
    """Packets as long as RoCE's really go to the peer and come back: the loopback interface passes the largest."""
    report = look_at(inventory)[0]
    mtu = next(one for one in report.capabilities if one.name == "mtu")
    assert (mtu.state, mtu.detail) == (State.REAL, "4096 (1 paths tried)")


def test_a_nic_that_is_not_there_costs_only_what_needs_it(inventory):
    """Nothing passes on an interface that does not exist; the rest is told all the same."""
    host = inventory.hosts[0]
    nics = (msgspec.structs.replace(host.nics[0], netdev="none0"),)
    hosts = (msgspec.structs.replace(host, nics=nics), *inventory.hosts[1:])
    found = states(look_at(msgspec.structs.replace(inventory, hosts=hosts))[0])
    assert found["reachable"] is State.REAL
    assert found["mtu"] is State.ABSENT


def test_a_host_that_cannot_be_reached_gets_one_line(inventory):
    """Nothing is said about what could not be looked at, and the others are looked at all the same."""
    silent = msgspec.structs.replace(inventory.access["here"], connection="ssh", address="127.0.0.1", port=1)
    access = {**inventory.access, "here": silent}
    first, second = look_at(msgspec.structs.replace(inventory, access=access))
    assert states(first) == {"reachable": State.ABSENT}
    assert first.lacks("gpu").name == "reachable"
    assert states(second)["reachable"] is State.REAL
    page = overview.lines([first, second])
    assert any("refused" in line and "-> repair the access" in line for line in page)


class Liar(LocalConnection):
    """A host that gives one answer to everything."""

    def __init__(self, host, answer):
        super().__init__(host)
        self.answer = answer

    def start(self, argv):
        return ProcessSession("here", argv[0], ["sh", "-c", 'while read -r _; do echo "$1"; done', "sh", self.answer])


@pytest.mark.parametrize(
    "answer",
    ["{", "NaN", "9" * 5000, "[" * 50_000, '{"error": "\\u001b[31m"}', '"1"', "\x1b[31m", '{"python": 3}', "7.5"],
)
def test_a_host_that_answers_anything_gets_one_printable_line(inventory, answer):
    """Neither its clock nor its report has to be of the form that we ask for."""
    inventory = msgspec.structs.replace(inventory, hosts=inventory.hosts[:1])
    (report,) = look_at(inventory, lambda host, _: Liar(host, answer))
    assert states(report) == {"reachable": State.ABSENT}
    assert report.lacks("reachable").detail.isprintable()


def test_every_nic_is_met_twice_in_its_own_plane(tmp_path):
    """A ring over the hosts of a plane: each NIC asks one on another host, and is asked by one."""
    nics = ", ".join(f"{{address: 10.{plane}.0.NN, plane: {plane}}}" for plane in (0, 1))
    hosts = "\n".join(f"    h{n}: {{c4: {{nics: [{nics.replace('NN', str(n))}]}}}}" for n in range(1, 5))
    path = tmp_path / "hosts.yml"
    path.write_text(f"all:\n  hosts:\n{hosts}\n")
    pairs = [pair for of in ring(load(path).hosts).values() for pair in of]
    assert len(pairs) == len({peer.name for _, peer in pairs}) == 8
    assert all(own.plane == peer.plane and own.host != peer.host for own, peer in pairs)


def test_connections_are_those_of_the_inventory(inventory):
    """Each host is reached by its own access."""
    used = []

    def reach(host, access):
        used.append((host, access))
        return connect(host, access)

    look_at(inventory, reach)
    assert sorted(used) == sorted(inventory.access.items())
