"""Who takes part: payloads of all workers of the sites that come in time, the same to everybody."""

from collections.abc import Callable, Sequence

from c4bench.collective.rendezvous import AbsentError

# `(key, sites, rank, payload)`: an all-gather of these sites' workers, as their number `rank`, whose answer, also that
# ranks are absent, is the same to all who ask.
Gather = Callable[[str, Sequence[int], int, bytes], list[bytes]]


class Attendance:
    """One worker's part in exchanges by the control plane; `workers` is how many each site has."""

    def __init__(self, gather: Gather, site: int, worker: int, workers: int) -> None:
        self._gather, self._site, self._worker, self._workers = gather, site, worker, workers

    def of(self, key: str, sites: Sequence[int], payload: bytes) -> dict[int, list[bytes]]:
        """Every worker's payload, by site, of those of the `sites` all of whose workers come in time.

        All that ask learn the same, also those that ask too late. Empty if this worker's site is left out. Use a key
        once.
        """
        present = tuple(sorted(sites))
        while self._site in present:
            rank = present.index(self._site) * self._workers + self._worker
            name = f"{key}/{'.'.join(map(str, present))}"
            try:
                payloads = self._gather(name, present, rank, payload)
            except AbsentError as error:
                absent = {present[rank // self._workers] for rank in error.ranks}
                present = tuple(site for site in present if site not in absent)
            else:
                firsts = range(0, len(payloads), self._workers)
                return {site: payloads[i : i + self._workers] for site, i in zip(present, firsts, strict=True)}
        return {}
