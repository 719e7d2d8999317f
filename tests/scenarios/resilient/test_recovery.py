"""The cost of a lost NIC by recovery method: within the operation, between operations, or from a checkpoint."""

import itertools
import statistics

import pytest

from c4bench.workload.jobs import job, place

OPERATIONS = 60
# Processes that start, and a checkpoint of 10 GB a rank read at 1 GB/s.
RESTART_S = 20.0
# How soon each must be back: what the promises of resilience, the transport's retries and the restart itself allow.
LIMITS_S = {"resilient": 0.15, "repair": 0.15, "switch": 1.0, "restart": RESTART_S + 2.0}
SIZES_BYTES = {2: 256 << 10, 8: 4 << 20}


@pytest.fixture
def recover(cluster, several_nics, inject, clocks, pytestconfig):
    """Run the operations, lose a NIC in one; when each was right for the last rank, the fault's onset, give or take."""

    def run(way):
        slow = several_nics[0].nics[0].rate_bps < 1e9
        spec = job(
            f"recovery-{way}",
            "recovery",
            place(several_nics),
            seed=pytestconfig.option.c4_seed,
            way=way,
            operations=OPERATIONS,
            size_bytes=SIZES_BYTES.get(len(several_nics[0].nics), 1 << 20),
            restart_s=RESTART_S,
            **({"chunk_bytes": 16 << 10, "window": 4} if slow else {}),
        )
        started = cluster.start(spec)
        ready = cluster.results(started, "ready", 60.0)
        assert [each["died"] for each in ready] == [0] * len(ready)
        try:
            with inject("nic.down", host=several_nics[1].name, nic=0) as fault:
                told = cluster.results(started, "recovery", 300.0)
        finally:
            cluster.stop(spec.id)
        hosts = [member.host for member in spec.members]
        done_s = [[clocks.ours(host, at) for at in one["done_s"]] for host, one in zip(hosts, told, strict=True)]
        error_s = fault.clock_error_s + clocks.error_s(*hosts)
        return [max(each) for each in zip(*done_s, strict=True)], fault.onset_s, error_s

    return run


@pytest.mark.nightly
@pytest.mark.needs(hosts=4)
def test_ways_to_recover(recover, several_nics, measure):
    """Recovery within the operation is fastest, and spreading the lost load is faster than moving it to one NIC."""
    back_s, slower = {}, {}
    for way, limit_s in LIMITS_S.items():
        done_s, onset_s, error_s = recover(way)
        hit = next(number for number, time_s in enumerate(done_s) if time_s > onset_s)
        assert 3 <= hit < OPERATIONS - 5, "the fault came too early or too late"
        took_s = [after - before for before, after in itertools.pairwise(done_s)]
        back_s[way] = done_s[hit] - onset_s
        slower[way] = statistics.median(took_s[hit + 2 :]) / statistics.median(took_s[: hit - 1])
        measure("resilient.recovery_s", back_s[way], unit="s", at_most=limit_s, plus_minus=error_s, way=way)
        measure("resilient.degraded_ratio", slower[way], way=way, lost=f"1 of {len(several_nics[0].nics)}")
    assert back_s["resilient"] < back_s["switch"] < back_s["restart"]
    assert slower["resilient"] <= 1.01 * slower["repair"]
