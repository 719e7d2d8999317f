"""The playbooks against whatever hosts there are: agents arrive, answer, and go without a trace."""

import datetime
import socket

from c4bench import remote
from c4bench.control.cluster import Cluster
from c4bench.deploy import authority, playbook, prepare
from c4bench.model.measurement import Clock

PORT = 7448
PREFIX = "/opt/c4bench-trial"
MOST_HOSTS = 2


def test_agents_are_deployed_and_removed(inventory, hosts, run_directory, tmp_path, measure):
    """The deploy playbook puts an agent on bare hosts, every one answers, a second run changes nothing, none stays."""
    chosen = hosts[:MOST_HOSTS]
    names = [host.name for host in chosen]
    authority.establish(tmp_path, names, datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1))
    ansible = run_directory.path / "ansible"
    variables = {
        "c4_prefix": PREFIX,
        "c4_master": address_towards(chosen[0]),
        "c4_port": PORT,
        "c4_trust": str(tmp_path),
        "c4_bundle": str(prepare.build(tmp_path, ranks=False)),
    }
    with Cluster(chosen, tmp_path, "0.0.0.0", PORT) as cluster:
        playbook("deploy", inventory, hosts=names, variables=variables, directory=ansible)
        try:
            answers = cluster.wait_hosts(names, 30.0)
            again = playbook("deploy", inventory, hosts=names[:1], variables=variables, directory=ansible)
        finally:
            playbook("teardown", inventory, hosts=names, variables=variables, directory=ansible)
    assert {answer.code for answer in answers.values()} == {f"{PREFIX}/{prepare.PACKAGES}/c4bench"}
    measure(
        "deploy.hosts_answering_fraction", len(answers) / len(chosen), equals=1, clock=Clock.NONE, hosts=len(chosen)
    )
    unchanged = again.hosts[names[0]].changed == 0
    measure("deploy.idempotent", float(unchanged), equals=1, clock=Clock.NONE)
    for host in chosen:
        assert residue(inventory, host) == ""


def address_towards(host):
    """Our own address as that host sees it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host.address, 9))
        return probe.getsockname()[0]


def residue(inventory, host):
    """What is left of the trial installation on a host: files and processes."""
    places = " ".join(f"{root}/c4bench-trial" for root in ("/opt", "/etc", "/run", "/dev/shm"))
    look = f"ls -d {places} 2>/dev/null; pgrep -af 'c4bench-tria[l]/agent.yml'"
    with remote.connect(host.name, inventory.access[host.name]) as connection:
        return connection.run(["sh", "-c", look], timeout_s=30.0, check=False).stdout.decode().strip()
