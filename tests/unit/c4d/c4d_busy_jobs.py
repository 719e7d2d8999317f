"""Jobs that communicate for a tenth to more than half of their time, drawn: what campaign and soak have in common."""

from c4d_telemetry import messages_of, parts_of

from c4bench.model.step import RankGroup, StepOp
from tools.sim.model import SimJob

# The share of its time for which a job communicates, how long its step is (s), and on how many hosts it is.
LOADS, PERIOD_S = (0.1, 0.3, 0.6), (0.04, 0.2)
HOSTS = (4, 8, 16, 32)


def busy_job(draw, load, sizes=HOSTS, **own):
    """A job on as many hosts as one of `sizes` says that communicates for `load` of its time."""
    period_s = draw.uniform(*PERIOD_S)
    hosts, per_host, ops = draw.choice(_TRAFFICS)(draw, sizes)
    return SimJob(
        hosts * per_host,
        tuple(_sized(kind, group, hosts * per_host, load, period_s / len(ops)) for kind, group in ops),
        seed=draw.randrange(1 << 30),
        jitter=draw.choice([0.01, 0.03]),
        ranks_per_host=per_host,
        **own,
    )


def _sized(kind, group, ranks, load, period_s):
    """An operation of `period_s`, that `load` of it is communication of, at 10 Gbit/s."""
    size = group.size if group else ranks
    message_bytes = int(load * period_s * 10e9 / 8 / messages_of(kind, size))
    return StepOp(kind, message_bytes * parts_of(kind, size), (1 - load) * period_s, group)


def _ring(draw, sizes):
    return draw.choice(sizes), 1, [("all_reduce", None)]


def _all_to_all(draw, sizes):
    return draw.choice(sizes), 1, [("all_to_all", None)]


def _rails(draw, sizes):
    """Hosts with four NICs, a ring and an all-to-all over all of them."""
    return draw.choice(sizes[:2]), 4, [("all_reduce", None), ("all_to_all", None)]


def _tensor_inside(draw, sizes):
    """Tensor groups inside hosts, data groups across."""
    hosts = draw.choice(sizes)
    return hosts, 4, [("all_reduce", RankGroup("tensor", 4)), ("all_reduce", RankGroup("data", hosts, 4))]


def _experts_across(draw, sizes):
    """Expert groups across hosts, beside data groups over everything."""
    hosts = draw.choice(sizes)
    return hosts, 2, [("all_to_all", RankGroup("expert", hosts, 2)), ("all_reduce", None)]


def _pipeline(draw, sizes):  # noqa: ARG001 (as the others)
    """Tensor groups on neighbours, a pipeline of two stages, and data groups between."""
    return 16, 1, [
        ("all_reduce", RankGroup("tensor", 2)),
        ("send", RankGroup("pipeline", 2, 8)),
        ("all_reduce", RankGroup("data", 4, 2)),
    ]  # fmt: skip


_TRAFFICS = (_ring, _all_to_all, _rails, _tensor_inside, _experts_across, _pipeline)
