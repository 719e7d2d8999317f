"""The messages from the injector on a host to its controller: one JSON object per line, tagged by `state`.

The controller sends one line, `revert`; the end of its output means the same.
"""

from typing import Any

import msgspec

from c4bench.decoding import DecodingError, from_json
from c4bench.errors import C4Error, InconclusiveError, UnhealthyError, UsageError
from c4bench.inject.actions import Schedule
from c4bench.inject.journal import Quarantine, Reverted
from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.fault import FaultSpec, Lease, WitnessReport

REVERT = "revert"


class Applied(msgspec.Struct, frozen=True, tag_field="state", tag="applied"):
    """The fault is in force. Times are on the host's clock; on another clock, off by at most `clock_error_s`.

    The effect began within `onset_bound_s` before `onset_s`; the lease ends at `expires_s`. `target` and `syndrome` are
    those of a correct diagnosis, None where there is nothing to diagnose.
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
        """When the effect was first observed; the onset where nothing was."""
        return self.onset_s if self.witness.observed_s is None else self.witness.observed_s


class Leaving(msgspec.Struct, frozen=True, tag_field="state", tag="leaving"):
    """The fault begins now and makes the host unreachable; until the lease ends only the controller can observe it.

    Fields as in `Applied`.
    """

    id: str
    fault: str
    target: Component | None
    syndrome: Syndrome | None
    leaving_s: float
    expires_s: float


class Healed(msgspec.Struct, frozen=True, tag_field="state", tag="healed"):
    """The fault is over, since `healed_s`.

    `reason`: asked, closed (the controller disconnected) or lease; `by`: who reverted it. `recovered` is None where it
    cannot be known, as on an idle NIC. `residue` is the difference from the state before, and should be empty.
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
    """The commands that would apply the fault and those that would revert it; `hardware` is the target's kind."""

    apply: tuple[str, ...]
    revert: tuple[str, ...]
    rhythm: Schedule | None = None
    hardware: str = ""


class Refused(msgspec.Struct, frozen=True, tag_field="state", tag="refused"):
    """Nothing was changed, or every change was reverted."""

    error: str
    exit_code: int

    def raised(self, host: str) -> C4Error:
        """The error for the controller to raise."""
        kinds = {kind.exit_code: kind for kind in (UsageError, UnhealthyError, InconclusiveError)}
        return kinds.get(self.exit_code, C4Error)(f"{host}: {self.error}")


Reply = Applied | Leaving | Healed | Planned | Refused


def schema() -> dict[str, Any]:
    """The JSON Schema of a line of the injector or of `c4bench fault --json`."""
    lines = (Applied, Leaving, Healed, Planned, Refused, Reverted, Quarantine, Lease, FaultSpec)
    refs, named = msgspec.json.schema_components(lines, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An answer about a fault",
        "anyOf": list(refs),
        "$defs": named,
    }


def encode(reply: Reply) -> str:
    """Encode as one line, without a newline."""
    return msgspec.json.encode(reply).decode()


def decode(line: str) -> Reply:
    """Decode one line. Raises UnhealthyError for anything else."""
    try:
        reply: Reply = from_json(line, Reply)  # type: ignore[arg-type]
    except DecodingError as error:
        raise UnhealthyError(f"the injector printed {line.strip()[:200]!r}: {error}") from None
    return reply
