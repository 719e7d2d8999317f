"""Jobs that communicate for much of their time, and others beside them: for trials and for long runs; from a seed."""

import random
from typing import NamedTuple

from campaign import CATALOGUE, JITTERS, PROFILES, TOGETHER, Trial, drawn_trial

from c4bench.model.step import RankGroup, StepOp
from c4bench.workload.jobs import job, place

# The share of its time for which the job of a trial communicates, and how long its step is (s).
LOADS, PERIOD_S = (0.1, 0.3, 0.6), (0.08, 0.2)
# How many faults there are at once: none in a fifth of the trials, two in another.
FAULTS = (0, 1, 1, 1, 2)
# From barely to badly.
STRENGTHS = {
    "nic.rate": {"fraction": (0.1, 0.95)},
    "link.rate": {"fraction": (0.1, 0.95)},
    "nic.delay": {"delay_s": (0.0001, 0.01)},
    "nic.loss": {"probability": (0.002, 0.1)},
    "nic.corrupt": {"probability": (0.002, 0.1)},
    "link.loss": {"probability": (0.002, 0.1)},
    "process.slow": {"factor": (1.05, 4.0)},
}
TRAFFICS = ("ring", "all_to_all", "tensor_inside", "experts_across")
# How much of its time a job beside it communicates, in one trial of three.
BESIDE_LOAD, BESIDE = 0.1, 3
# A ring that sends all the time, and senders that each do to one receiver.
BURST = (StepOp("all_reduce", 1 << 19, 0.0),)
INCAST = (StepOp("send", 1 << 19, 0.0, RankGroup("sender", 2)),)


class BusyTrial(NamedTuple):
    """A job that communicates for `load` of its time, `faults` at once, and whether another job runs `beside` it."""

    name: str
    traffic: str
    load: float
    period_s: float
    jitter: float
    profile: str
    beside: bool
    healthy_s: float
    draw: int
    faults: tuple[Trial, ...]


def busy_trials(seed, count, possible=CATALOGUE):
    """The first `count` trials of a seed: traffics in turn, and every possible fault before any comes again."""
    draw = random.Random(f"busy {seed}")
    together = [name for name in TOGETHER if name in possible]
    kinds = []
    trials = []
    for number in range(count):
        faults = draw.choice(FAULTS)
        if len(kinds) < faults:
            kinds = draw.sample(sorted(possible), len(possible))
        names = [kinds.pop()] if faults == 1 else [draw.choice(together) for _ in range(faults)]
        trials.append(
            BusyTrial(
                f"busy-{seed}-{number}",
                TRAFFICS[number % len(TRAFFICS)],
                draw.choice(LOADS),
                round(draw.uniform(*PERIOD_S), 3),
                draw.choice(JITTERS),
                draw.choice(PROFILES),
                not draw.randrange(BESIDE),
                round(draw.uniform(3.5, 4.5), 3),
                draw.randrange(1 << 30),
                tuple(drawn_trial(draw, seed, number, name, STRENGTHS) for name in names),
            )
        )
    return trials


def healthy_trial(seed, traffic, load):
    """A trial without a fault, of a job with this traffic and load; all else is drawn as for the others."""
    draw = random.Random(f"healthy {seed} {traffic} {load}")
    name = f"soak-{traffic}-{round(100 * load)}"
    drawn = round(draw.uniform(*PERIOD_S), 3), draw.choice(JITTERS), draw.choice(PROFILES), not draw.randrange(BESIDE)
    return BusyTrial(name, traffic, load, *drawn, 0.0, draw.randrange(1 << 30), ())


def busy_job(trial, hosts, **parameters):
    """The job of a trial on these hosts; further `parameters` are those of `workload.groups.Groups`."""
    placed, per_host, ops = _shape(trial.traffic, place(hosts))
    rate_bps = sum(nic.rate_bps for nic in hosts[0].nics) / per_host
    step = [_sized(kind, group, len(placed), trial.load, trial.period_s / len(ops), rate_bps) for kind, group in ops]
    own = {"step": step, "jitter": trial.jitter, "profile": trial.profile, **parameters}
    return job(trial.name, "groups", placed, seed=trial.draw, **own)


def job_beside(trial, hosts):
    """Another job: a ring over the same hosts, in their own order."""
    rate_bps = sum(nic.rate_bps for nic in hosts[0].nics)
    step = [_sized("all_reduce", None, len(hosts), BESIDE_LOAD, trial.period_s, rate_bps)]
    return job(f"{trial.name}-beside", "groups", hosts, seed=trial.draw, step=step)


def burst_job(name, hosts, *, seed, steps):
    """A ring that sends all the time, over the fabric's middle."""
    return job(name, "groups", place(hosts), seed=seed, step=BURST, steps=steps)


def incast_job(name, hosts, *, seed, steps):
    """Two hosts that send to a third one all the time; which ones the seed says."""
    receiver, *senders = random.Random(f"incast {seed}").sample(list(hosts), 3)
    members = [host for sender in senders for host in (sender, receiver)]
    return job(name, "groups", members, seed=seed, step=INCAST, steps=steps)


def _shape(traffic, hosts):
    """The rank's hosts, how many ranks share one, and the operations of a step, each with its group."""
    inside = [host for host in hosts for _ in range(2)]
    match traffic:
        case "tensor_inside":
            return inside, 2, [("all_reduce", RankGroup("tensor", 2)), ("all_reduce", RankGroup("data", len(hosts), 2))]
        case "experts_across":
            return inside, 2, [("all_to_all", RankGroup("expert", len(hosts), 2)), ("all_reduce", None)]
        case _:
            return hosts, 1, [({"ring": "all_reduce"}.get(traffic, traffic), None)]


def _sized(kind, group, ranks, load, period_s, rate_bps):
    """An operation of `period_s`, for `load` of which each rank sends at `rate_bps`."""
    size = group.size if group else ranks
    messages = {"all_reduce": 2 * (size - 1), "all_to_all": size - 1}[kind]
    message_bytes = int(load * period_s * rate_bps / 8 / messages) // 64 * 64
    return StepOp(kind, message_bytes * size, round((1 - load) * period_s, 6), group)
