"""The playbooks that want RDMA, on a machine that has it: the embedded lab's, which is Ansible's own machine here."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.nightly
REPOSITORY = Path(__file__).parents[2]
INVENTORY = {
    "all": {
        "vars": {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"},
        "hosts": {"here": {"c4": {"nics": [{"device": "soft0", "netdev": "cable0"}]}}},
    }
}
# Each playbook in turn: what it would do, what it does, and that there is nothing left to do.
SCENE = """
set -eu
export ANSIBLE_HOME=/tmp/ansible ANSIBLE_LOCAL_TEMP=/tmp/ansible/tmp
play() { book=$1 log=$2; shift 2; ansible-playbook -i "$run/hosts.yml" "playbooks/$book.yml" "$@" > "$run/$log.log"; }
links() { rdma -j link show > "$run/$1.links"; }
ip link add cable0 type veth peer name cable1
ip address add 10.99.0.1/24 dev cable0
ip link set cable0 up; ip link set cable1 up
play softroce make-check --check; links 0; play softroce make; links 1; play softroce make-again
play discover find-check --check; play discover find; play discover find-again
drop() { play softroce "$@" -e c4_state=absent; }
drop drop-check --check; links 2; drop drop; links 3; drop drop-again
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """The folder in which a lab has left what it saw."""
    run = tmp_path_factory.mktemp("playbooks")
    (run / "hosts.yml").write_text(yaml.safe_dump(INVENTORY))
    scene = f"run={run} PATH={Path(sys.executable).parent}:$PATH; {SCENE}"
    command = [sys.executable, "-m", "c4bench.cli.main", "lab", "run", "--bare", "--topology=pair", f"--run-dir={run}"]
    done = subprocess.run(
        [*command, "--", "bash", "-c", scene], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return run


def changed(output, name):
    """How many tasks of a run changed something, or would have."""
    return int(re.search(r"^here .* changed=(\d+) ", (output / f"{name}.log").read_text(), re.MULTILINE)[1])


def devices(output, number):
    """The RDMA devices at that point."""
    return [link["ifname"] for link in json.loads((output / f"{number}.links").read_text())]


def test_softroce_is_made_once_and_taken_away_once(output):
    """Tried only, nothing happens but the telling; then a device is there; the second run changes nothing.

    What is taken away are the inventory's devices, and since discovery these are all that the host has.
    """
    there = devices(output, 0)
    assert "soft0" not in there
    assert [changed(output, f"make{which}") for which in ("-check", "", "-again")] == [1, 1, 0]
    assert devices(output, 1) == devices(output, 2) == [*there, "soft0"]
    assert [changed(output, f"drop{which}") for which in ("-check", "", "-again")] == [1, 1, 0]
    assert there
    assert devices(output, 3) == []


def test_what_a_host_has_is_discovered(output):
    """Every device is written with its interface, address and rate, for review; the second run leaves it alone."""
    assert [changed(output, f"find{which}") for which in ("-check", "", "-again")] == [1, 1, 0]
    found = yaml.safe_load((output / "host_vars/here/c4bench.yml").read_text().replace("!unsafe ", ""))["c4"]
    assert not found["disruptive"]
    nics = {nic["device"]: nic for nic in found["nics"]}
    assert nics["h0r0"] == {"device": "h0r0", "netdev": "h0n0", "address": "10.0.0.1", "rate": "10gbit"}
    assert nics["soft0"]["address"] == "10.99.0.1"
