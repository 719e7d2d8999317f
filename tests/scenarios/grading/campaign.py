"""What a campaign tries: any fault that C4D has a verdict on, anywhere, at any time, on any traffic; from a seed."""

import json
import random
from typing import NamedTuple

import msgspec

from c4bench.inject import catalogue
from c4bench.model.fault import TargetKind
from tools.shares import least_successes, share_interval

# A campaign, and as many of its first trials as every run tries.
TRIALS, SLICE = 24, 4
# How many trials were right, of how many, on seeds that nothing was changed for (docs/campaign.md).
FAIR_SAMPLE = 262, 264
# How often as many as are asked for may be missed by chance.
FALSE_RED = 1e-4
TRAFFICS = ("ring", "groups", "all_to_all")
JITTERS = (0.01, 0.03)
PROFILES = ("brisk", "patient")
# The detector has learnt what is normal by then, even for the slightest faults.
EARLIEST_S, LATEST_S = 3.2, 4.2
# How slight the faults that have a strength may be, and how bad.
STRENGTHS = {
    "nic.rate": {"fraction": (0.1, 0.9)},
    "link.rate": {"fraction": (0.1, 0.9)},
    "nic.delay": {"delay_s": (0.0005, 0.01)},
    "nic.loss": {"probability": (0.01, 0.05)},
    "nic.corrupt": {"probability": (0.01, 0.05)},
    "nic.reorder": {},
    "link.loss": {"probability": (0.01, 0.05)},
    "process.slow": {"factor": (1.1, 3.0)},
    # Long enough for a step to begin in each stall.
    "process.stall": {"factor": (3.0, 6.0), "period_s": (0.8, 1.2), "duty": (0.2, 0.3)},
    "process.uneven": {"factor": (1.3, 3.0), "period_s": (0.6, 1.2)},
}
# Packets larger than the interface's MTU make rxe's sender spin in the kernel: a lab's clock stands still by it. A
# pause storm needs flow control, which the campaign's fabrics have not. A link that flaps is drawn as nic.flap.
NOT_DRAWN = {"nic.mtu", "nic.pause_storm", "link.flap"}
CATALOGUE = {
    name: spec
    for name, spec in catalogue.load().specs.items()
    # The injector blames a GPU, C4D its rank: they have no word in common to be held against each other.
    if spec.verdict and not spec.not_in_lab and name not in NOT_DRAWN and spec.target is not TargetKind.GPU
}
# What comes and goes is told from chance only when it has come again.
RECURRING = {"process.stall", "process.uneven", "nic.flap"}


def least_right(trials, right=FAIR_SAMPLE[0], tried=FAIR_SAMPLE[1]):
    """How many of the trials have to be right: by chance alone fewer are in one of 10,000 campaigns at most.

    The accuracy is the lower 95 % bound of what `right` of `tried` say, and trials are taken to be independent.
    """
    return least_successes(trials, share_interval(right, tried).low, FALSE_RED)


class Trial(NamedTuple):
    """One fault on one job. `draw` decides where; `healthy_s` is how long the job has been running by then."""

    number: int
    seed: int
    fault: str
    traffic: str
    jitter: float
    profile: str
    healthy_s: float
    parameters: dict[str, float | str]
    draw: int

    @property
    def name(self) -> str:
        """What the job of the trial is called."""
        return f"trial-{self.seed}-{self.number}"


def trials(seed, count, possible=CATALOGUE):
    """The first `count` trials of a seed: every possible fault before any comes again, and traffics in turn."""
    draw = random.Random(f"campaign {seed}")
    faults = []
    while len(faults) < count:
        faults += draw.sample(sorted(possible), len(possible))
    return [drawn_trial(draw, seed, number, fault) for number, fault in enumerate(faults[:count])]


# Two of these at once leave the job running, so that both can show.
TOGETHER = ("nic.rate", "nic.delay", "process.slow")


def pairs(seed, count):
    """Pairs of trials, each for one job."""
    draw = random.Random(f"pairs {seed}")
    return [
        tuple(drawn_trial(draw, seed, 2 * number, draw.choice(TOGETHER)) for _ in range(2)) for number in range(count)
    ]


def once(path, runs):
    """What comes of each run, by name, a line each in the file at `path`; what that has already is not run again."""
    lines = path.read_text().splitlines() if path.exists() else []
    known = {found["name"]: found for found in map(json.loads, lines)}
    for name, run in runs.items():
        if name not in known:
            known[name] = {"name": name} | run()
            with path.open("ab") as file:
                file.write(msgspec.json.encode(known[name]) + b"\n")
    return [known[name] for name in runs]


def drawn_trial(draw, seed, number, fault, strengths=STRENGTHS):
    """A trial of a fault, everything else drawn; faults without `strengths` of their own have the campaign's."""
    wanted = CATALOGUE[fault].parameters
    bounds_of = strengths.get(fault, STRENGTHS.get(fault, {}))
    parameters = {name: round(draw.uniform(*bounds), 4) for name, bounds in bounds_of.items() if name in wanted}
    if "direction" in wanted:
        parameters["direction"] = draw.choice(wanted["direction"].choices)
    return Trial(
        number,
        seed,
        fault,
        TRAFFICS[number % len(TRAFFICS)],
        draw.choice(JITTERS),
        draw.choice(PROFILES),
        round(draw.uniform(EARLIEST_S, LATEST_S), 3),
        parameters,
        draw.randrange(1 << 30),
    )


def place(trial, job, hosts, inventory, ports, possible):
    """Where the fault of a trial goes, in words: one of the places that can have it."""
    draw = random.Random(trial.draw)

    def choice(names, owner=str):
        return draw.choice([name for name in names if not possible.obstacle_at(trial.fault, owner(name))])

    match CATALOGUE[trial.fault].target:
        case TargetKind.NIC:
            return choice([nic.name for host in hosts for nic in host.nics])
        case TargetKind.PORT:
            kinds = {"port.down": ports.towards, "switch.misrouted": ports.shared, "link.ecmp_member": ports.shared}
            return choice(kinds.get(trial.fault) or ports.across, lambda port: port.partition("/")[0])
        case TargetKind.PROCESS:
            member = draw.choice(job.members)
            return f"{job.id}:{member.rank}@{member.host}"
        case TargetKind.SWITCH:
            return choice(inventory.switches)
        case _:
            return choice([host.name for host in hosts])
