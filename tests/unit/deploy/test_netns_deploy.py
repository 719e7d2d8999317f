"""The real playbooks on two hosts of namespaces, over real SSH."""

from pathlib import Path

import netns_hosts
import pytest

import c4bench
from c4bench.control.cluster import Cluster
from c4bench.deploy import playbook
from c4bench.deploy.prepare import prepare
from c4bench.inventory import load

REASON = netns_hosts.missing()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
PORT = 7447


@pytest.fixture
def hosts(tmp_path):
    with netns_hosts.netns_hosts(2, tmp_path) as made:
        yield made


def agents(host):
    return [words for words in host.processes() if "c4bench.agent.main" in words]


def test_deployed_agents_answer_and_teardown_leaves_nothing(hosts, tmp_path):
    """Agents run from their own bundle, prove who they are, and go again with every process and file of theirs."""
    inventory = load(hosts.inventory)
    names = [host.name for host in hosts.hosts]
    variables = prepare(inventory, tmp_path) | {"c4_master": netns_hosts.CONTROLLER, "c4_port": PORT}
    before = [host.files() for host in hosts.hosts]
    deployed = playbook("deploy", inventory, hosts=names, variables=variables, directory=tmp_path)
    with Cluster(inventory.hosts, tmp_path / "trust", netns_hosts.CONTROLLER, PORT) as cluster:
        answers = cluster.wait_hosts(names, 20)
    for host in hosts.hosts:
        assert answers[host.name].version == c4bench.__version__
        assert answers[host.name].code == "/opt/c4bench/site/c4bench"
        assert answers[host.name].rdma.startswith("no RDMA device")
        assert agents(host)
        assert deployed.hosts[host.name].ok == 5
    playbook("teardown", inventory, hosts=names, variables={}, directory=tmp_path)
    for host, files in zip(hosts.hosts, before, strict=True):
        assert [words for words in host.processes() if "sshd" not in words] == []
        assert host.files() == files
    assert not Path("/opt/c4bench").exists()
