"""The real playbooks on two hosts of namespaces, over real SSH."""

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


@pytest.fixture
def hosts(tmp_path):
    with netns_hosts.netns_hosts(2, tmp_path, {"nics": NICS}) as made:
        yield made


def agents(host):
    return [words for words in host.processes() if "c4bench.agent.main" in words]


def configuration(inventory, host):
    with connect(host.name, inventory.access[host.name]) as connection:
        found = connection.run(["cat", "/etc/c4bench/agent.yml"], timeout_s=20).stdout
    return msgspec.convert(yaml.safe_load(found), AgentConfig)


def problems(inventory):
    return {f"{report.host}: {one.name}" for report in look_at(inventory) for one in report.bad}


def test_deployed_agents_answer_and_teardown_leaves_nothing(hosts, tmp_path):
    """Agents run from their own bundle, prove who they are, and go again with every process and file of theirs."""
    inventory = load(hosts.inventory)
    names = [host.name for host in hosts.hosts]
    variables = prepare(inventory, tmp_path) | {"c4_master": netns_hosts.CONTROLLER, "c4_port": PORT}
    before = [(host.files(), host.accounts()) for host in hosts.hosts]
    tried = playbook("deploy", inventory, hosts=names, variables=variables, directory=tmp_path, check=True)
    assert [(host.files(), host.accounts()) for host in hosts.hosts] == before
    first = playbook("deploy", inventory, hosts=names, variables=variables, directory=tmp_path)
    started = [agents(host) for host in hosts.hosts]
    again = playbook("deploy", inventory, hosts=names, variables=variables, directory=tmp_path)
    with Cluster(inventory.hosts, tmp_path / "trust", netns_hosts.CONTROLLER, PORT) as cluster:
        answers = cluster.wait_hosts(names, 20)
    for host in hosts.hosts:
        assert answers[host.name].version == c4bench.__version__
        assert answers[host.name].code == f"/opt/c4bench/{PACKAGES}/c4bench"
        assert answers[host.name].rdma.startswith("no RDMA device")
        changed = [run.hosts[host.name].changed for run in (tried, first, again)]
        assert changed == [6, 7, 0]  # what is only tried starts nothing
        assert configuration(inventory, host).nics == inventory.hosts[names.index(host.name)].nics
    assert problems(inventory) == {"n1: rdma", "n2: rdma"}
    assert all(started)
    assert [agents(host) for host in hosts.hosts] == started
    playbook("teardown", inventory, hosts=names, variables={}, directory=tmp_path)
    assert [words for host in hosts.hosts for words in host.processes() if "sshd" not in words] == []
    assert [(host.files(), host.accounts()) for host in hosts.hosts] == before
    assert problems(inventory) >= {"n1: agents", "n2: agents"}


def test_a_host_that_is_gone_is_named(hosts, tmp_path):
    """A host that cannot be reached is an error that says which one and why; the others do not hide it."""
    content = yaml.safe_load(hosts.inventory.read_text())
    content["all"]["hosts"]["n2"]["ansible_port"] = 23
    hosts.inventory.write_text(yaml.safe_dump(content))
    inventory = load(hosts.inventory)
    with pytest.raises(UnhealthyError, match=r"n2: task 'End every fault that is in force': .*Connection refused"):
        playbook("teardown", inventory, hosts=["n1", "n2"], variables={}, directory=tmp_path)
    here, gone = look_at(inventory)
    assert here.lacks("reachable") is None
    assert "198.18.77.12" in gone.lacks("reachable").detail
