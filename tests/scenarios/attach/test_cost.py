"""What watching costs perftest by the machine's clock: runs with and without the library, alternately, over the same NICs."""

import statistics

import pytest

from c4bench.attach import build
from c4bench.model.measurement import Clock

pytestmark = [pytest.mark.nightly, pytest.mark.needs(hosts=2)]
WITHIN_S, ROUNDS = 120.0, 9
PROGRAMS = {
    "ib_write_bw": "ib_write_bw -d {device} -x {gid} -m 4096 -s 65536 -n 2000 --report_gbits",
    "ib_send_lat": "ib_send_lat -d {device} -x {gid} -s 2 -n 5000",
}


@pytest.mark.parametrize("tool", PROGRAMS)
def test_perftest_is_as_fast_with_the_library(program, rdma_hosts, measure, tool):
    """The median of the pairs differs by 1 % at most: a bandwidth that is lower, or a latency that is higher."""
    if build.in_virtual_time():
        pytest.skip("virtual-time: here computing takes no time; give --c4-time=real, or real hosts")
    if not program.has(tool, rdma_hosts[:2]):
        pytest.skip(f"no-{tool}: install perftest on the hosts")

    def figure(attach):
        ran = program(PROGRAMS[tool], hosts=rdma_hosts[:2], attach=attach)
        ran.wait(WITHIN_S)
        return ran.figure

    def cost(number):
        first = number % 2 == 0  # so that drift of the machine favours neither
        one, other = figure(first), figure(not first)
        watched, plain = (one, other) if first else (other, one)
        ratio = watched.value / plain.value
        return 1 - ratio if plain.name.endswith("bandwidth") else ratio - 1

    costs = [cost(number) for number in range(ROUNDS + 1)][1:]
    low, middle, high = statistics.quantiles(costs, n=4)
    for name, value in (("p25", low), ("p75", high)):
        measure(f"attach.cost_{name}", value, unit="1", clock=Clock.MACHINE, program=tool)
    measure("attach.cost_fraction", middle, unit="1", at_most=0.01, clock=Clock.MACHINE, program=tool, rounds=ROUNDS)
