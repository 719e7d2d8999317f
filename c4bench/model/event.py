"""The master's events, in order: its log, and what subscribers receive."""

import msgspec

from c4bench.model.benign import BenignSlowdown
from c4bench.model.diagnosis import Component, Diagnosis
from c4bench.model.steering import Incident


class Diagnosed(msgspec.Struct, frozen=True, tag_field="event", tag="diagnosis"):
    """C4D has found something. `time_s` is the master's clock here and in every event."""

    time_s: float
    diagnosis: Diagnosis


class SlowdownExplained(msgspec.Struct, frozen=True, tag_field="event", tag="benign"):
    """C4D has found why a job is slower, and that no component is at fault."""

    time_s: float
    slowdown: BenignSlowdown


class AgentMissing(msgspec.Struct, frozen=True, tag_field="event", tag="agent_missing"):
    """A host's agent has not been heard of since `since_s`.

    `ranks` tells what the other hosts see of the ranks there: `moving`, as their data still arrives, so the host is up
    and only the agent or the way to it is gone; `still`; or `none` where no job has ranks there.
    """

    time_s: float
    host: str
    since_s: float
    ranks: str


class AgentBack(msgspec.Struct, frozen=True, tag_field="event", tag="agent_back"):
    """A missing agent has connected again."""

    time_s: float
    host: str
    since_s: float


class SteeringStage(msgspec.Struct, frozen=True, tag_field="event", tag="steering"):
    """A stage of an incident has been reached."""

    time_s: float
    incident: Incident


class HostReturned(msgspec.Struct, frozen=True, tag_field="event", tag="put_back"):
    """A host is in service again: in its check the worse direction reached `fraction` of the bound; None by hand."""

    time_s: float
    host: str
    fraction: float | None = None


class HookRan(msgspec.Struct, frozen=True, tag_field="event", tag="hook"):
    """A site's command was given a finding; `said` is the first line that it printed.

    Where `exit_code` is None it was not run, or did not end in time, and `said` is why.
    """

    time_s: float
    job: str
    component: Component
    command: str
    exit_code: int | None
    said: str


Event = Diagnosed | SlowdownExplained | AgentMissing | AgentBack | SteeringStage | HostReturned | HookRan
