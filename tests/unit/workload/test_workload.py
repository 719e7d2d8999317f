"""Payloads, controls and job descriptions."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.errors import UsageError
from c4bench.model.fabric import Host, Nic
from c4bench.workload.controls import Controls
from c4bench.workload.jobs import job, place


def test_a_knob_turned_by_one_process_is_seen_by_another(tmp_path):
    """The rank and the injector look at the same memory."""
    rank = Controls.create(tmp_path / "0.controls")
    assert rank.compute_factor == 1.0
    Controls.open(tmp_path / "0.controls").compute_factor = 2.5
    assert rank.compute_factor == 2.5


def test_controls_of_nobody_are_refused(tmp_path):
    """A missing file and a foreign one are errors with their path."""
    (tmp_path / "foreign").write_bytes(b"x" * 64)
    for name in ("missing", "foreign"):
        with pytest.raises(UsageError, match=name):
            Controls.open(tmp_path / name)


def hosts(count):
    return [Host(f"h{i}", "", (Nic(f"h{i}", 0, f"h{i}r0", f"h{i}n0", f"10.0.{i}.1", 1e10),)) for i in range(count)]


@given(count=st.integers(2, 16))
def test_neighbours_are_placed_across_the_halves(count):
    """The order keeps every host, and ring neighbours come from different halves as far as halves are equal."""
    made = hosts(count)
    placed = place(made)
    assert sorted(host.name for host in placed) == sorted(host.name for host in made)
    half = (count + 1) // 2
    sides = [made.index(host) < half for host in placed[: count - count % 2]]
    assert all(here != there for here, there in pairwise(sides))


def test_a_job_uses_all_nics_of_its_hosts():
    """Members are ranked in host order, with every NIC listed."""
    spec = job("j", "training", hosts(3), seed=1, compute_s=0.1)
    assert [(member.rank, member.host, member.nics) for member in spec.members] == [
        (0, "h0", ("h0/0",)),
        (1, "h1", ("h1/0",)),
        (2, "h2", ("h2/0",)),
    ]
