"""Faults as data: what the catalogue offers, what is asked for, how long it holds, and what was seen of it."""

from enum import StrEnum
from typing import Literal

import msgspec

from c4bench.errors import UsageError
from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.fabric import Nic

Value = float | str


class TargetKind(StrEnum):
    """What a fault befalls."""

    NIC = "nic"
    PROCESS = "process"


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One knob of a fault.

    A `number` lies between `minimum` and `maximum`, both included; a `choice` is one of `choices`. Without a `default`
    whoever asks for the fault must say it.
    """

    summary: str
    type: Literal["number", "choice"]
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    default: Value | None = None


class ExpectedVerdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What C4D should say. `side` is empty, `tx`, `rx`, or `direction`: the side that the request's parameter names."""

    syndrome: Syndrome
    component: Literal["nic", "rank"]
    side: Literal["", "tx", "rx", "direction"] = ""


class FaultSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault of the catalogue; `drivers` names the function that brings it about, by kind of hardware."""

    name: str
    summary: str
    description: str
    target: TargetKind
    drivers: dict[str, str]
    capability: str
    blast_radius: str
    witness: str
    verdict: ExpectedVerdict
    parameters: dict[str, Parameter] = {}


class FaultRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault, where, how strong, and for how long at most.

    A NIC fault names a `nic`; a process fault names a `job` and a `rank`. `witness_s` is how long the witness looks
    before and after the onset: longer than the job's own rhythm, or it may see only a pause.
    """

    fault: str
    host: str
    nic: Nic | None = None
    job: str | None = None
    rank: int | None = None
    parameters: dict[str, Value] = {}
    lease_s: float = 30.0
    witness_s: float = 0.3

    def number(self, parameter: str) -> float:
        """A numeric parameter's value; KeyError when the request is not resolved against the catalogue."""
        return float(self.parameters[parameter])

    def word(self, parameter: str) -> str:
        """A choice parameter's value; KeyError as for `number`."""
        return str(self.parameters[parameter])

    @property
    def the_nic(self) -> Nic:
        """The NIC it is for; UsageError when it names none."""
        if self.nic is None:
            raise UsageError(f"{self.fault} happens to a NIC, and none is named; say which, such as nic=0")
        return self.nic

    @property
    def the_rank(self) -> tuple[str, int]:
        """The job and the rank it is for; UsageError when it names none."""
        if self.job is None or self.rank is None:
            raise UsageError(f"{self.fault} happens to a process; say whose, such as job='train', rank=2")
        return self.job, self.rank

    @property
    def where(self) -> str:
        """`h5/0`, or `train:2`: the target as people name it."""
        return self.nic.name if self.nic else f"{self.job}:{self.rank}"

    def blamed(self, verdict: ExpectedVerdict) -> Component:
        """The component that a right diagnosis of this fault names."""
        side = self.word("direction") if verdict.side == "direction" else verdict.side
        return Component(verdict.component, self.where, side)


class Lease(msgspec.Struct, frozen=True):
    """A fault on a host from its intent to `expires_s` (its clock), when the host puts things right by itself."""

    id: str
    request: FaultRequest
    started_s: float
    expires_s: float


class Witnessed(msgspec.Struct, frozen=True):
    """What the witness saw: quantities by name, `before` the onset and `during` the fault.

    `observed_s` is the earliest evidence on the host's clock, None where nothing was `seen`.
    """

    seen: bool
    observed_s: float | None
    before: dict[str, float]
    during: dict[str, float]
