"""What is done about a diagnosis: the policy that allows it, and the record of what was done and when."""

from enum import StrEnum
from typing import Annotated

import msgspec

from c4bench.model.diagnosis import Component, Diagnosis

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_Positive = Annotated[float, msgspec.Meta(gt=0.0)]


class Action(StrEnum):
    """How far steering may go: look on, take the component out of service, restart the job without it."""

    OBSERVE = "observe"
    ISOLATE = "isolate"
    RESTART = "restart"


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be done for one job, by kind of syndrome.

    A job with fewer than `min_ranks` ranks is no use; 0 stands for as many as it was started with. At most
    `hosts_per_hour` hosts are taken out of service, and the job is restarted at most `restarts_per_hour` times. A rank,
    NIC or host that is less likely right than `min_confidence` is only looked at. With `sweep` all NICs of the job are
    probed beside it once something is slow, for what its traffic does not show. An attempt must train within
    `resume_within_s`. A host that is out is looked at every `check_every_s`, and is put back when a transfer to and
    from it reaches `healthy_fraction` of the payload bound.
    """

    hang: Action = Action.OBSERVE
    slow: Action = Action.OBSERVE
    sweep: bool = False
    min_ranks: _Count = 0
    hosts_per_hour: _Count = 2
    restarts_per_hour: _Count = 6
    min_confidence: _Share = 0.5
    resume_within_s: _Positive = 120.0
    check_every_s: _Positive = 30.0
    healthy_fraction: _Share = 0.9


class IsolatedHost(msgspec.Struct, frozen=True):
    """A host out of service: since when (master's clock), for which component's sake, and on behalf of which job."""

    host: str
    component: Component
    since_s: float
    job: str


class Incident(msgspec.Struct, frozen=True):
    """A diagnosis and what became of it. Times are on the master's clock; None for a stage that was not reached.

    `job` is the job's name and `diagnosis.job` the attempt it concerns. `out` is the host that was taken out of service
    for it, `spare` the host in its place; empty where there is none. `reason` says why no more was done, or why this.
    `isolated_s`: no rank of the old attempt runs on any host that answers; `restarted_s`: all ranks of the new one
    have been started; `resumed_s`: every rank has done its first iteration, from the checkpoint after `resumed_step`
    steps. `component` is what was isolated.
    """

    job: str
    diagnosis: Diagnosis
    action: Action
    reason: str
    component: Component | None = None
    out: str = ""
    spare: str = ""
    isolated_s: float | None = None
    restarted_s: float | None = None
    resumed_s: float | None = None
    resumed_step: int | None = None
