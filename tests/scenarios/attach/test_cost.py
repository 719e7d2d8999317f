"""What watching costs a program by the machine's clock: runs with the library and without, alternately, on two NICs."""

import statistics

import pytest

from c4bench.attach import build
from c4bench.model.measurement import Clock

pytestmark = [pytest.mark.nightly, pytest.mark.needs(hosts=2)]
WITHIN_S, ROUNDS = 120.0, 9
# perftest measures the processor's frequency first, and reports nothing where the machine is busy.
PROGRAMS = {
    "bandwidth": "ibv_rc_pingpong -d {device} -g {gid} -m 4096 -s 65536 -n 400",
    "latency": "ibv_rc_pingpong -d {device} -g {gid} -s 2 -n 2000",
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_ping_pong_is_as_fast_with_the_library(program, rdma_hosts, measure, what):
    """The median of the pairs differs by 1 % at most, of large messages as of small ones."""
    if build.in_virtual_time():
        pytest.skip("virtual-time: here computing takes no time; give --c4-time=real, or real hosts")
    if not program.has("ibv_rc_pingpong", rdma_hosts[:2]):
        pytest.skip("no-ibv_rc_pingpong: install ibverbs-utils on the hosts")

    def bandwidth_bps(attach):
        ran = program(PROGRAMS[what], hosts=rdma_hosts[:2], attach=attach)
        ran.wait(WITHIN_S)
        return ran.figure.value

    def cost(number):
        first = number % 2 == 0  # so that drift of the machine favours neither
        rates = {attach: bandwidth_bps(attach) for attach in (first, not first)}
        return 1 - rates[True] / rates[False]

    costs = [cost(number) for number in range(ROUNDS + 1)][1:]
    low, middle, high = statistics.quantiles(costs, n=4)
    for name, value in (("p25", low), ("p75", high)):
        measure(f"attach.cost_{name}", value, unit="1", clock=Clock.MACHINE, program=f"ibv_rc_pingpong {what}")
    measure(
        "attach.cost_fraction",
        middle,
        unit="1",
        at_most=0.01,
        clock=Clock.MACHINE,
        program=f"ibv_rc_pingpong {what}",
        rounds=ROUNDS,
    )
