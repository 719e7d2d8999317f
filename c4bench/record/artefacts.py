"""What scenarios save for the report to draw. Save with `Ledger.save(NAME, struct)`; NAME is in each docstring.

| name           | struct          | drawn as                                                   |
|----------------|-----------------|------------------------------------------------------------|
| `fabric`       | `Fabric`        | the fabric: hosts, switches, links                         |
| `link_loads`   | `LinkLoads`     | the same fabric once for each case, links by load          |
| `faults`       | `Faults`        | onset, observed, alarmed, named, isolated on a common axis |
| `delay_matrix` | `DelayMatrices` | heat maps of transfer time per byte                        |
| `campaign`     | `Campaign`      | what was said against what was injected, and every miss    |
| `growth`       | `Growth`        | cost over size, both on logarithmic scales                 |
| `ablation`     | `Ablation`      | a table and bars: what each part of C4P brings, by case    |
| `loss_curves`  | `LossCurves`    | losses by tokens, a line for each method of training       |
| `link_bytes`   | `LinkBytes`     | bytes of a step by link, a bar for each method of training |

`campaign_fabric`, a `Fabric`, is not drawn: right answers of a campaign are derived from it (docs/campaign.md).
"""

import msgspec

from c4bench.model.diagnosis import Syndrome


class Switch(msgspec.Struct, frozen=True):
    """A switch; `tier` is 1 for a leaf, 2 for a spine, 3 for a core."""

    name: str
    tier: int


class FabricHost(msgspec.Struct, frozen=True):
    """A host and the names of its NICs (`host/index`)."""

    name: str
    nics: tuple[str, ...]


class FabricLink(msgspec.Struct, frozen=True):
    """A directed link. `source` and `target` are NIC or switch names; `hop` is the address of its far end, unique."""

    source: str
    target: str
    rate_bps: float
    hop: str


class Fabric(msgspec.Struct, frozen=True):
    """`fabric`: what the traffic ran on."""

    switches: tuple[Switch, ...]
    hosts: tuple[FabricHost, ...]
    links: tuple[FabricLink, ...]


class LoadCase(msgspec.Struct, frozen=True):
    """One case, such as `ECMP` or `C4P`: utilisation (offered rate over link rate; above 1 is contended) by hop."""

    label: str
    loads: dict[str, float]


class LinkLoads(msgspec.Struct, frozen=True):
    """`link_loads`: the cases to set side by side, in order. Hops that a case leaves out carry nothing."""

    cases: tuple[LoadCase, ...]


class FaultTimeline(msgspec.Struct, frozen=True):
    """One injected fault and what became of it; times in seconds on the master's clock.

    `onset_s` is when it was applied, `observed_s` when the witness saw it take effect, `resumed_s` the first good
    iteration after it. A stage that was never reached is None. `correct` says whether
    the diagnosis names the target with the expected syndrome; None where none was due.
    """

    name: str
    target: str
    expected: Syndrome
    onset_s: float
    observed_s: float | None = None
    alarmed_s: float | None = None
    named_s: float | None = None
    isolated_s: float | None = None
    resumed_s: float | None = None
    diagnosis: str = ""
    correct: bool | None = None


class Faults(msgspec.Struct, frozen=True):
    """`faults`: the faults of one scenario, in order of injection."""

    faults: tuple[FaultTimeline, ...]


class DelayMatrix(msgspec.Struct, frozen=True):
    """Transfer time per byte: `cells_s_per_byte[i][j]` from `nics[i]` to `nics[j]`, None without traffic."""

    label: str
    nics: tuple[str, ...]
    cells_s_per_byte: tuple[tuple[float | None, ...], ...]


class DelayMatrices(msgspec.Struct, frozen=True):
    """`delay_matrix`: the matrices to set side by side, such as before and during a fault."""

    matrices: tuple[DelayMatrix, ...]


class CampaignTrial(msgspec.Struct, frozen=True):
    """One fault of a campaign: what was `expected` and `said` as `syndrome, kind of component`, "silence" for nothing.

    `where` is the trial in words, enough to run it again.
    """

    name: str
    expected: str
    said: str
    right: bool
    where: str


class Campaign(msgspec.Struct, frozen=True):
    """`campaign`: every trial, in order."""

    trials: tuple[CampaignTrial, ...]


class Growth(msgspec.Struct, frozen=True):
    """`growth`: what something costs, by its size; `points` are (size, cost) in order of size, all above zero."""

    label: str
    size: str
    cost: str
    points: tuple[tuple[float, float], ...]


class AblationCell(msgspec.Struct, frozen=True):
    """One case under one mode: the share of the optimum that the worst job gets, with its range over draws."""

    mode: str
    oversubscription: str
    state: str
    jobs: int
    fraction: float
    low: float
    high: float


class Ablation(msgspec.Struct, frozen=True):
    """`ablation`: what each part of path planning brings; `modes` in the order in which they are added."""

    modes: tuple[str, ...]
    cells: tuple[AblationCell, ...]


class LossCurve(msgspec.Struct, frozen=True):
    """The training loss of one method; `points` are (tokens, loss in nats) in order of tokens, at least one."""

    method: str
    points: tuple[tuple[float, float], ...]


class LossCurves(msgspec.Struct, frozen=True):
    """`loss_curves`: methods to set beside each other, at most five, all trained on the same text."""

    curves: tuple[LossCurve, ...]


class StepBytes(msgspec.Struct, frozen=True):
    """What `link` carries for an inner step of `method` in the mean, both directions, in bytes."""

    link: str
    method: str
    bytes_per_step: float


class LinkBytes(msgspec.Struct, frozen=True):
    """`link_bytes`: the links of a fabric by method, those of one link together."""

    loads: tuple[StepBytes, ...]
