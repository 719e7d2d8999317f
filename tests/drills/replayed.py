"""What test_replay.py has two labs run: C4D on a job of four ranks, one of which becomes slow."""

import time

HEALTHY_S, PATIENCE_S = 0.5, 10.0


def test_slow_rank(job, c4d, inject, measure):
    """The rank that computes twice as long is named; when it is, is the same with the same seed."""
    time.sleep(HEALTHY_S)
    victim = job.members[2]
    with inject("process.slow", host=victim.host, job=job.id, rank=victim.rank, factor=2.0) as fault:
        found = c4d.wait(PATIENCE_S)
        measure("c4d.alarm_s", found.alarmed_s - fault.observed_s, unit="s", fault="process.slow")
        measure("c4d.name_s", found.named_s - fault.observed_s, unit="s", fault="process.slow")
    assert found.component == fault.target
