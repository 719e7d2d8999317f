"""Packet spraying on the machine's own kernel: the packets of one flow, counted on every link."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("sprayed_packets.py")
PACKETS = 192


@pytest.fixture(params=["clos-2x4", "fat-tree-2x2"])
def counted(request):
    """What the program counted on a topology, by case."""
    argv = ["unshare", "--map-root-user", "--net", "--mount", "--propagation", "private"]
    done = subprocess.run(
        [*argv, sys.executable, str(PROGRAM), request.param], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode and any(words in done.stderr for words in ("unshare:", "not found", "Unknown device type")):
        pytest.skip(f"no-kernel-support: {done.stderr.strip().splitlines()[-1]}")
    assert not done.returncode, done.stderr
    return request.param, json.loads(done.stdout)


def test_a_flow_takes_all_links_in_turn_and_leaves_a_dead_one(counted):
    """Every tier divides the packets of the DSCP evenly, over the links that are up; other packets keep to one path."""
    topology, cases = counted
    assert {case: found["arrived"] for case, found in cases.items()} == dict.fromkeys(cases, PACKETS)
    uplinks = {case: found["uplinks"] for case, found in cases.items()}
    assert set(uplinks["other class"].values()) == {PACKETS}
    if topology == "clos-2x4":
        assert uplinks["sprayed"] == {f"leaf0/up{number}": PACKETS // 4 for number in range(4)}
        assert sorted(uplinks["new routes"]) == ["leaf0/up0", "leaf0/up2", "leaf0/up3"]
        assert sorted(uplinks["new routes"].values()) == [60, 60, 72]
    else:
        assert {link: uplinks["sprayed"][link] for link in ("leaf0/up0", "leaf0/up1")} == {
            "leaf0/up0": PACKETS // 2,
            "leaf0/up1": PACKETS // 2,
        }
        of_spines = {link: count for link, count in uplinks["sprayed"].items() if link.startswith("spine")}
        assert of_spines == {f"spine{spine}/up{up}": PACKETS // 4 for spine in (0, 1) for up in (0, 1)}
    assert "leaf0/up1" not in uplinks["link down"]
