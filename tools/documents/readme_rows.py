"""The rows of docs/figures.md, and the few that README shows: the measurements that they are of, and their texts."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

_LAB = "`make lab`"
_TEST = "`make test`"
_NIGHT = "`make night`"
_SPLIT = {"lost": "1 of 2"}


class Row(NamedTuple):
    """A row of a table: the worst of the measurements it selects, from the newest run that has any.

    `scenario` is a pattern as for file names. Each of `labels` is one value or a tuple of those allowed. `topology`
    limits the choice to runs on that fabric. What is `nightly` stays in the documents until a night has measured it.
    """

    table: str
    text: str
    name: str
    scenario: str
    labels: Mapping[str, str | int | tuple[str, ...]] = MappingProxyType({})
    topology: str = ""
    nightly: bool = False


class Highlight(NamedTuple):
    """A figure of README, and the one to read beside it; `row` and `beside_row` are texts of rows in `ROWS`."""

    text: str
    row: str
    beside: str
    beside_row: str


HIGHLIGHTS = (
    Highlight(
        "All-reduce over eight hosts: share of the bandwidth that the links allow",
        "The same: bus bandwidth, share of the payload bound",
        "share of the elements that are exact",
        "Ring all-reduce, 8 hosts, 16 MiB, 10 Gbit/s: share of the elements that are exact",
    ),
    Highlight(
        "C4P, four jobs across leaves: speed-up over ECMP with as many QPs (95 % interval)",
        "C4P, the same: speed-up over ECMP with as many QPs (95 % interval, 8 draws)",
        "under perftest, as it is",
        "C4P, 4 jobs of perftest across leaves, as it is: speed-up over ECMP with as many QPs (95 % interval)",
    ),
    Highlight(
        "C4D: time to name a NIC that receives at a quarter of its rate",
        "C4D, the same: time to name the NIC",
        "false alarms in 300 iterations of a healthy job",
        "C4D, 300 iterations with benign disturbances: false alarms",
    ),
    Highlight(
        "Steering, a killed rank: alarm to the first good iteration on a spare",
        "Steering, a killed rank: alarm to the first good iteration on a spare",
        "a late NIC, likewise",
        "Steering, a NIC that sends 2 ms late in a ring, likewise",
    ),
    Highlight(
        "Resilient collectives, a NIC dies without an event: longest pause",
        "Resilient: longest pause when packets vanish without an event",
        "without resilience, every rank has an error after",
        "A NIC loses its link, without resilience: time until every rank has an error",
    ),
    Highlight(
        "Streaming DiLoCo: times fewer bytes between two sites than data-parallel",
        "Streaming DiLoCo, H = 100, 4 bits: times fewer bytes between sites than data-parallel",
        "goodput with one of four sites cut off for a fifth of the time",
        "Streaming DiLoCo, four sites, one cut off for a fifth of the time: goodput",
    ),
)

ROWS = (
    Row(
        _LAB,
        "Ring all-reduce, 8 hosts, 16 MiB, 10 Gbit/s: share of the elements that are exact",
        "all_reduce.exact_fraction",
        "bandwidth.*",
    ),
    Row(_LAB, "The same: bus bandwidth, share of the payload bound", "all_reduce.busbw_fraction", "bandwidth.*"),
    Row(
        _LAB,
        "Share of connections on their planned path, by the switches' counters",
        "paths.as_planned_fraction",
        "bandwidth.*",
    ),
    Row(_LAB, "C4P, 4 jobs across leaves: slowest of 8 draws, share of the optimum", "c4p.plan_fraction", "plan.*"),
    Row(
        _LAB,
        "C4P, the same: speed-up over ECMP with as many QPs (95 % interval, 8 draws)",
        "c4p.gain_over_ecmp",
        "plan.*",
        {"qps": "same"},
    ),
    Row(
        _LAB,
        "C4P, the same: speed-up over ECMP with one QP (95 % interval, 8 draws)",
        "c4p.gain_over_ecmp",
        "plan.*",
        {"qps": "1"},
    ),
    Row(
        _LAB,
        "C4D, a NIC receives at a quarter of its rate: time to alarm",
        "c4d.alarm_s",
        "faults.*",
        {"fault": "nic.rate"},
    ),
    Row(_LAB, "C4D, the same: time to name the NIC", "c4d.name_s", "faults.*", {"fault": "nic.rate"}),
    Row(_LAB, "C4D, a killed rank: time to alarm", "c4d.alarm_s", "faults.*", {"fault": "process.kill"}),
    Row(_LAB, "C4D, the same: time to name the rank", "c4d.name_s", "faults.*", {"fault": "process.kill"}),
    Row(
        _LAB,
        "C4D, a rank computes twice as long: time to alarm",
        "c4d.alarm_s",
        "faults.*",
        {"fault": "process.slow"},
    ),
    Row(_LAB, "C4D, the same: time to name the rank", "c4d.name_s", "faults.*", {"fault": "process.slow"}),
    Row(
        _LAB,
        "Share of hosts whose agent answers after `playbooks/deploy.yml`",
        "deploy.hosts_answering_fraction",
        "deploy.*",
    ),
    Row(
        _TEST,
        "Steering, a killed rank: alarm to the first good iteration on a spare",
        "restart.first_iteration_s",
        "steering.*",
        {"fault": "process.kill"},
    ),
    Row(
        _TEST,
        "Share of losses after the restart that equal an undisturbed job's, bit for bit",
        "restart.loss_identical",
        "steering.*",
    ),
    Row(
        _TEST,
        "C4D, 4 random faults: share diagnosed correctly (95 % interval)",
        "campaign.correct_fraction",
        "campaign.campaign",
    ),
    Row(
        _TEST,
        "C4D, the same: healthy components named as the only suspect",
        "campaign.healthy_isolated",
        "campaign.campaign",
    ),
    Row(
        _TEST,
        "C4P, path atlas: share of entries the switches' counters confirm",
        "atlas.correct_fraction",
        "atlas.*",
        {"by": "probes"},
    ),
    Row(_TEST, "C4P, path atlas: time to learn all pairs of 8 NICs", "atlas.learn_s", "atlas.*", {"by": "probes"}),
    Row(
        _TEST,
        "C4P, path atlas: share of the busiest link's capacity that learning takes",
        "atlas.load_fraction",
        "atlas.*",
        {"by": "probes"},
    ),
    Row(
        _TEST,
        "Resilient collectives, hosts with two NICs, 6 trials: share of the elements that are exact",
        "resilient.exact_fraction",
        "trials.*",
        {"nics": 2},
    ),
    Row(
        _TEST,
        "Resilient: longest pause when a port event reports the loss",
        "resilient.pause_s",
        "trials.*",
        {"nics": 2, "kind": ("NIC down", "flap", "leaf port")},
    ),
    Row(
        _TEST,
        "Resilient: longest pause when packets vanish without an event",
        "resilient.pause_s",
        "trials.*",
        {"nics": 2, "kind": ("black hole", "one direction", "ACKs only", "late packets")},
    ),
    Row(
        _TEST,
        "Resilient: slowdown while all NICs work",
        "resilient.healthy_cost",
        "costs.*",
        {"nics": 2},
    ),
    Row(
        _TEST,
        "Resilient, large all-reduce, 1 of 2 NICs of a host lost: deviation from the cost model",
        "resilient.model_error",
        "split.*",
        {"model": "split", **_SPLIT},
    ),
    Row(_TEST, "Resilient, the same: speed-up over sharing the load", "resilient.around_speedup", "split.*", _SPLIT),
    Row(_TEST, "C4D: diagnoses of one lost NIC", "resilient.diagnoses", "costs.*"),
    Row(
        _TEST,
        "Ranks call different collectives: time until every rank has an error",
        "collective.error_s",
        "bad_input.disagreement*",
    ),
    Row(
        _TEST,
        "A NIC loses its link, without resilience: time until every rank has an error",
        "collective.error_s",
        "bad_input.device_that_vanishes",
    ),
    Row(
        _TEST,
        "Streaming DiLoCo, two sites: share of losses that are to the bit those of one process",
        "diloco.loss_identical",
        "sites.*",
    ),
    Row(
        _TEST,
        "Streaming DiLoCo, four sites: outer steps until C4D names a cut of one's only way out",
        "diloco.name_outer_steps",
        "site_faults.*",
    ),
    Row(
        _TEST,
        "Share of hosts left clean by drills (pytest, master or agent killed, SSH cut, restart, full disk, ...)",
        "hosts.clean_after_drill_fraction",
        "tests/drills/*",
    ),
    Row(_TEST, "Machine time to build the lab's kernel", "setup.kernel_build_s", "lab"),
    Row(_TEST, "Machine time to boot a lab of eight hosts with agents", "lab.boot_s", "lab", topology="clos-2x4"),
    Row(
        _NIGHT,
        "C4P, 4 jobs of perftest across leaves, as it is: speed-up over ECMP with as many QPs (95 % interval)",
        "attach.gain_over_ecmp",
        "foreign_programs.*",
        nightly=True,
    ),
    Row(
        _NIGHT,
        "The same: slowest job, share of the optimum",
        "attach.optimum_fraction",
        "foreign_programs.*",
        nightly=True,
    ),
    Row(
        _NIGHT,
        "The same: share of queue pairs on their planned path, by the switches' counters",
        "attach.as_planned_fraction",
        "foreign_programs.*",
        nightly=True,
    ),
    Row(
        _NIGHT,
        "Steering, a crashed host: alarm to the first good iteration",
        "restart.first_iteration_s",
        "steering.*",
        {"fault": "host.crash"},
        nightly=True,
    ),
    Row(
        _NIGHT,
        "Steering, a NIC that sends 2 ms late in a ring, likewise",
        "restart.first_iteration_s",
        "steering.*",
        {"fault": "nic.delay"},
        nightly=True,
    ),
    Row(
        _NIGHT,
        "C4P, path atlas where no switch answers probes, by counters: time to learn all pairs",
        "atlas.learn_s",
        "atlas.*",
        {"by": "counters"},
        nightly=True,
    ),
    Row(
        _NIGHT,
        "C4D, 300 iterations with benign disturbances: false alarms",
        "soak.false_alarms",
        "soak.three_hundred_steps",
        nightly=True,
    ),
    Row(
        _NIGHT,
        "C4P, bonded NICs: speed-up over ECMP with as many QPs (95 % interval, 8 draws)",
        "c4p.gain_over_ecmp",
        "bonds.*",
        {"jobs": 4, "draws": 8},
        nightly=True,
    ),
    Row(
        _NIGHT,
        "C4P, the same: largest difference between a bond's ports, of their mean load",
        "c4p.plane_skew",
        "bonds.*",
        {"jobs": 4, "draws": 8, "paths": "planned"},
        nightly=True,
    ),
    Row(
        _NIGHT,
        "Streaming DiLoCo, H = 100, 4 bits: times fewer bytes between sites than data-parallel",
        "diloco.bytes_ratio",
        "sites.*",
        nightly=True,
    ),
    Row(
        _NIGHT,
        "Streaming DiLoCo, fragments of 3 of 24 blocks: times less than plain DiLoCo at its peak",
        "diloco.peak_ratio",
        "sites.*",
        nightly=True,
    ),
    Row(
        _NIGHT,
        "Streaming DiLoCo, four sites, one cut off for a fifth of the time: goodput",
        "diloco.goodput",
        "site_faults.*",
        {"method": "diloco"},
        nightly=True,
    ),
)
