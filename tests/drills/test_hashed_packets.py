"""Switches that hash more than the 5-tuple, on the machine's own kernel: packets counted on every link, and answers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("hashed_packets.py")


@pytest.fixture(params=["dest-qp", "adaptive"])
def counted(request):
    """What the program counted, by the fabric's hash."""
    argv = ["unshare", "--map-root-user", "--net", "--mount", "--propagation", "private", sys.executable, str(PROGRAM)]
    topology = {"dest-qp": "clos-2x4-qp", "adaptive": "clos-2x4-adaptive"}[request.param]
    done = subprocess.run([*argv, topology], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode and any(words in done.stderr for words in ("unshare:", "not found", "Unknown device type")):
        pytest.skip(f"no-kernel-support: {done.stderr.strip().splitlines()[-1]}")
    assert not done.returncode, done.stderr
    return request.param, json.loads(done.stdout)


def test_packets_part_by_queue_pair_or_by_the_moment(counted):
    """All packets of a port and queue pair take one uplink, or several; links that probes cross answer them."""
    hash_of, found = counted
    assert found["first"] == found["gateway"]
    links = {(one["port"], one["qp"]): list(one["uplinks"]) for one in found["sent"]}
    for one in found["sent"]:
        assert one["hops"] == sorted(found["answers"][uplink] for uplink in one["uplinks"])
    if hash_of == "adaptive":
        assert all(len(uplinks) > 1 for uplinks in links.values())
        return
    assert all(len(uplinks) == 1 for uplinks in links.values())
    for kind in (0, 1):
        for value in {key[kind] for key in links}:
            assert len({uplinks[0] for key, uplinks in links.items() if key[kind] == value}) > 1
