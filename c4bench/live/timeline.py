"""The timeline's entries: what events of the master and lines of a fault history are for people. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from c4bench.c4p.knowledge.link_names import in_words
from c4bench.foreign_text import one_line
from c4bench.model.event import (
    AgentBack,
    AgentMissing,
    Diagnosed,
    Event,
    HostReturned,
    SlowdownExplained,
    SteeringStage,
)
from c4bench.model.steering import Incident

_LONGEST = 4000
# The times that a page can show: the Unix time of the year 9999 is less.
_LAST_S = 2e11
# Kinds of lines that the injector writes.
_STAGES = {
    "fault_asked": "is asked for",
    "fault_refused": "was refused",
    "fault_applied": "is in force",
    "fault_healed": "is healed",
    "host_quarantined": "could not be healed, and no other is injected there",
}
FAULT, ALARM, FINDING, ACTION, HOST, BENIGN = "fault", "alarm", "finding", "action", "host", "benign"


class Entry(msgspec.Struct, frozen=True):
    """An entry of the timeline. `time_s` is Unix time; `kind` is one of fault, alarm, finding, action, host and benign.

    `subject` is the component, host or fault, `job` the job's name or "" and `text` one sentence without its full stop.
    """

    time_s: float
    kind: str
    subject: str
    job: str
    text: str


def entries_of(event: Event, links: Mapping[str, str]) -> tuple[Entry, ...]:
    """The entries of an event of the master: for a diagnosis its alarm and its finding; `links` has names of links."""
    match event:
        case Diagnosed(diagnosis=found):
            what, sure = found.syndrome.replace("_", " "), f"confidence {found.confidence:.0%}"
            return (
                Entry(found.alarmed_s, ALARM, what, found.job, f"the telemetry departs from normal: {what}"),
                Entry(
                    found.named_s,
                    FINDING,
                    found.component.named(links),
                    found.job,
                    in_words("; ".join((what, sure, *found.evidence)), links),
                ),
            )
        case SlowdownExplained(time_s, slowdown):
            text = in_words("; ".join((f"no fault but {slowdown.reason}", *slowdown.evidence)), links)
            return (Entry(time_s, BENIGN, slowdown.component.named(links), slowdown.job, text),)
        case SteeringStage(time_s, incident):
            return (
                Entry(time_s, ACTION, incident.diagnosis.component.named(links), incident.job, _stage(incident, links)),
            )
        case AgentMissing(time_s, host, since_s, ranks):
            lasted = f"its agent has not been heard of for {time_s - since_s:.0f} s"
            return (Entry(time_s, HOST, host, "", f"{lasted}; ranks there: {ranks}"),)
        case AgentBack(time_s, host, since_s):
            return (Entry(time_s, HOST, host, "", f"its agent is back after {time_s - since_s:.0f} s"),)
        case HostReturned(time_s, host, fraction):
            how = "by hand" if fraction is None else f"a transfer reached {fraction:.0%} of the payload bound"
            return (Entry(time_s, HOST, host, "", f"in service again: {how}"),)


def printable(entry: Entry) -> Entry:
    """The entry without what does not print in names and text that hosts, ranks and files brought."""
    subject, job, text = (one_line(part, _LONGEST) for part in (entry.subject, entry.job, entry.text))
    return msgspec.structs.replace(entry, subject=subject, job=job, text=text)


def _stage(incident: Incident, links: Mapping[str, str]) -> str:
    """What has been done about an incident last."""
    if incident.resumed_s is not None:
        step = "" if incident.resumed_step is None else f" from step {incident.resumed_step}"
        return f"the job trains again{step}"
    if incident.restarted_s is not None:
        return f"the job is restarted{f' on {incident.spare}' if incident.spare else ''}"
    if incident.isolated_s is not None:
        component = incident.component or incident.diagnosis.component
        return f"{incident.out or component.named(links)} is out of service"
    return f"decided to {incident.action}: {incident.reason}" if incident.reason else f"decided to {incident.action}"


def entry_of_fault(line: Mapping[str, Any]) -> Entry | None:
    """The entry of a line of a fault history (`c4bench.inject.history`); None for a line of anything else."""
    time_s, stage = line.get("time_s"), _STAGES.get(str(line.get("kind")))
    if stage is None or not isinstance(time_s, int | float) or not 0 <= time_s < _LAST_S:
        return None
    subject = str(line.get("target") or line.get("where") or line.get("host") or "")
    reason = line.get("reason") or line.get("error")
    text = f"{line.get('fault') or 'a fault'} {stage}" + (f": {reason}" if reason else "")
    return Entry(float(time_s), FAULT, subject, "", text)
