"""What the injector on a host says to its controller: one JSON object a line, told apart by `state`.

In the other direction there is one line, `revert`; the end of the input means the same.
"""

from typing import Any

import msgspec

from c4bench.errors import C4Error, InconclusiveError, UnhealthyError, UsageError
from c4bench.inject.actions import Schedule
from c4bench.inject.journal import Quarantine, Reverted
from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.fault import FaultSpec, Lease, WitnessReport

REVERT = "revert"


class Applied(msgspec.Struct, frozen=True, tag_field="state", tag="applied"):
    """The fault is in force. Times are the host's clock; put on another, they may be off by `clock_error_s`.

    The effect began within `onset_bound_s` before `onset_s`; the lease ends at `expires_s`. `target` and `syndrome` are
    what a right diagnosis names, None where there is nothing to diagnose.
    """

    id: str
    fault: str
    target: Component | None
    syndrome: Syndrome | None
    onset_s: float
    onset_bound_s: float
    expires_s: float
    witness: WitnessReport
    clock_error_s: float = 0.0

    @property
    def observed_s(self) -> float:
        """When the effect first showed; the onset where nothing was seen."""
        return self.onset_s if self.witness.observed_s is None else self.witness.observed_s


class Leaving(msgspec.Struct, frozen=True, tag_field="state", tag="leaving"):
    """The fault begins now, and takes the host away: only the controller can see its effect, until the lease ends.

    Fields as those of `Applied`.
    """

    id: str
    fault: str
    target: Component | None
    syndrome: Syndrome | None
    leaving_s: float
    expires_s: float


class Healed(msgspec.Struct, frozen=True, tag_field="state", tag="healed"):
    """The fault is over, since `healed_s`.

    `reason`: asked, closed (the controller went away) or lease; `by`: who reverted it. `recovered` is None where
    nothing can tell, as on an idle NIC. `residue` is what differs from before on the host, and should be empty.
    """

    id: str
    reason: str
    by: str
    healed_s: float
    recovered: bool | None
    after: dict[str, float]
    residue: tuple[str, ...]
    problems: tuple[str, ...]


class Planned(msgspec.Struct, frozen=True, tag_field="state", tag="planned"):
    """The exact commands that would bring the fault about, and those that would undo it, as they would be typed."""

    apply: tuple[str, ...]
    revert: tuple[str, ...]
    rhythm: Schedule | None = None


class Refused(msgspec.Struct, frozen=True, tag_field="state", tag="refused"):
    """Nothing was done, or what was done was reverted."""

    error: str
    exit_code: int

    def raised(self, host: str) -> C4Error:
        """The error as the controller's side raises it."""
        kinds = {kind.exit_code: kind for kind in (UsageError, UnhealthyError, InconclusiveError)}
        return kinds.get(self.exit_code, C4Error)(f"{host}: {self.error}")


Reply = Applied | Leaving | Healed | Planned | Refused


def schema() -> dict[str, Any]:
    """The JSON Schema of a line that the injector or `c4bench fault --json` says."""
    lines = (Applied, Leaving, Healed, Planned, Refused, Reverted, Quarantine, Lease, FaultSpec)
    refs, named = msgspec.json.schema_components(lines, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An answer about a fault",
        "anyOf": list(refs),
        "$defs": named,
    }


def encode(reply: Reply) -> str:
    """One line, without its end."""
    return msgspec.json.encode(reply).decode()


def decode(line: str) -> Reply:
    """A line's meaning. Raises UnhealthyError when it is none of ours."""
    try:
        reply: Reply = msgspec.json.decode(line, type=Reply)
    except msgspec.MsgspecError as error:
        raise UnhealthyError(f"the injector said {line.strip()[:200]!r}: {error}") from None
    return reply
