"""Which jobs have asked for planned paths, and what they are told while nothing is planned."""

from collections.abc import Iterable, Mapping

from c4bench.control.jobs.job import Job
from c4bench.model.fabric import Flow

NO_INVENTORY = "this master plans no paths; start it with --hosts INVENTORY"
_PLANNED = "planned"  # by this word all programs' parameters ask for it


class PlanRequests:
    """The requests of `jobs`. At first a program's default counts as a request."""

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._jobs = jobs
        self._default_asks = True
        self.advice = NO_INVENTORY

    def only_explicit(self, advice: str) -> None:
        """A job asks for paths only by its own parameters, not by its program's default; `advice` is for those."""
        self._default_asks, self.advice = False, advice

    def by_job(self, flows: Iterable[Flow], *, planning: bool) -> dict[str, list[Flow]]:
        """These flows by job, of the jobs that have asked for paths; of all jobs where the master is `planning`."""
        found: dict[str, list[Flow]] = {}
        for flow in flows:
            found.setdefault(flow.job, []).append(flow)
        return {job: of_job for job, of_job in found.items() if planning or self._asks(job)}

    def _asks(self, job: str) -> bool:
        running = self._jobs.get(job)
        values = running.spec.parameters.values() if running else ()
        words = (word for value in values for word in (value if isinstance(value, list | tuple) else (value,)))
        return self._default_asks or any(isinstance(word, str) and word.startswith(_PLANNED) for word in words)
