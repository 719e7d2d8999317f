"""What a site's command is given about a finding."""

from collections.abc import Sequence
from typing import Self

import msgspec

from c4bench.model.diagnosis import Diagnosis


class HookInput(msgspec.Struct, frozen=True):
    """One finding: its `job` by name, the job's `hosts`, and the `host` of the component, "" where it is on none.

    `sure` is whether no other component may be to blame.
    """

    job: str
    host: str
    hosts: tuple[str, ...]
    sure: bool
    diagnosis: Diagnosis

    @classmethod
    def of(cls, diagnosis: Diagnosis, job: str, hosts: Sequence[str]) -> Self:
        """For a finding about an attempt that runs on these hosts: the rank with number n on the n-th, "" for none."""
        component, host = diagnosis.component, ""
        if component.kind == "rank":
            number = component.name.rpartition(":")[2]
            host = hosts[int(number)] if number.isdigit() and int(number) < len(hosts) else ""
        elif component.kind == "nic":
            host = component.name.partition("/")[0]
        elif component.kind == "host":
            host = component.name
        return cls(job, host, tuple(dict.fromkeys(filter(None, hosts))), not diagnosis.alternatives, diagnosis)
