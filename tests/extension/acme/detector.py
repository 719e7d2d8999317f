"""A detector: the records of a job go in, in the order of arrival, and diagnoses come out."""

from c4bench import Component, Diagnosis, Evaluated, Record, Syndrome, Window


class Stopped:
    """Names a rank whose process stands still, once."""

    def __init__(self) -> None:
        self._stopped: dict[Component, float] = {}
        self._named: set[Component] = set()

    def ingest(self, record: Record) -> list[Diagnosis]:
        """Keep who stands still; name it when it is time to judge."""
        if isinstance(record, Window):
            for rank in record.ranks:
                if rank.state == "stopped":
                    self._stopped.setdefault(Component("rank", f"{rank.job}:{rank.rank}"), record.end_s)
        if not isinstance(record, Evaluated):
            return []
        new = {one: since_s for one, since_s in self._stopped.items() if one not in self._named}
        self._named |= new.keys()
        return [self._diagnosis(one, since_s, record.at_s) for one, since_s in new.items()]

    def _diagnosis(self, one: Component, since_s: float, now_s: float) -> Diagnosis:
        job, hang = one.name.rpartition(":")[0], Syndrome.NON_COMMUNICATION_HANG
        return Diagnosis(job, hang, one, since_s, now_s, now_s, 0.9, ("its process is stopped",), "it runs again")
