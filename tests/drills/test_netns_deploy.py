"""The real playbooks on hosts of namespaces, over real SSH."""

import msgspec
import netns_hosts
import pytest
import yaml

import c4bench
from c4bench.control.cluster import Cluster
from c4bench.deploy import playbook
from c4bench.deploy.prepare import PACKAGES, prepare
from c4bench.doctor.hosts import look_at
from c4bench.errors import UnhealthyError
from c4bench.inventory import load
from c4bench.model.agent import AgentConfig
from c4bench.remote import connect

REASON = netns_hosts.missing()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
PORT = 7447
NICS = [
    {"device": "mlx5_0", "netdev": "ens1", "address": "10.1.0.1", "rate": "100gbit"},
    {
        "index": 3,
        "device": "mlx5_1",
        "netdev": "ens2",
        "address": "10.2.0.1",
        "rate": "2.5gbit",
        "plane": 1,
    },
    {},
]


def made_hosts(count, folder):
    return netns_hosts.netns_hosts(count, folder, {"nics": NICS})


def agents(host):
    return [words for words in host.processes() if "c4bench.agent.main" in words]


def configuration(inventory, host):
    with connect(host.name, inventory.access[host.name]) as connection:
        found = connection.run(["cat", "/etc/c4bench/agent.yml"], timeout_s=20).stdout
    return msgspec.convert(yaml.safe_load(found), AgentConfig)


def problems(inventory):
    return {f"{report.host}: {one.name}" for report in look_at(inventory) for one in report.bad}


def test_deployed_agents_answer_and_teardown_leaves_nothing(tmp_path):
    """An agent runs from its own bundle, proves who it is, and goes again with every process and file of its own."""
    with made_hosts(1, tmp_path) as made:
        (host,), inventory = made.hosts, load(made.inventory)
        variables = prepare(inventory, tmp_path) | {"c4_master": netns_hosts.CONTROLLER, "c4_port": PORT}
        to_play = {"hosts": [host.name], "directory": tmp_path}
        before = host.files(), host.accounts()
        tried = playbook("deploy", inventory, variables=variables, check=True, **to_play)
        assert (host.files(), host.accounts()) == before
        first = playbook("deploy", inventory, variables=variables, **to_play)
        with Cluster(inventory.hosts, tmp_path / "trust", netns_hosts.CONTROLLER, PORT) as cluster:
            answer = cluster.wait_hosts([host.name], 20)[host.name]
        assert (answer.version, answer.code) == (c4bench.__version__, f"/opt/c4bench/{PACKAGES}/c4bench")
        assert answer.rdma.startswith("no RDMA device")
        # What is only tried starts nothing.
        assert [run.hosts[host.name].changed for run in (tried, first)] == [6, 7]
        assert configuration(inventory, host).nics == inventory.hosts[0].nics
        assert problems(inventory) == {"n1: rdma"}
        assert agents(host)
        playbook("teardown", inventory, variables={}, **to_play)
        assert [words for words in host.processes() if "sshd" not in words] == []
        assert (host.files(), host.accounts()) == before
        assert problems(inventory) >= {"n1: agents"}


def test_a_host_that_is_gone_is_named(tmp_path):
    """A host that cannot be reached is an error that says which one and why; the others do not hide it."""
    with made_hosts(2, tmp_path) as made:
        content = yaml.safe_load(made.inventory.read_text())
        content["all"]["hosts"]["n2"]["ansible_port"] = 23
        made.inventory.write_text(yaml.safe_dump(content))
        inventory = load(made.inventory)
        with pytest.raises(UnhealthyError, match=r"n2: task 'End every fault that is in force': .*Connection refused"):
            playbook("teardown", inventory, hosts=["n1", "n2"], variables={}, directory=tmp_path)
        here, gone = look_at(inventory)
    assert here.lacks("reachable") is None
    assert "198.18.77.12" in gone.lacks("reachable").detail
