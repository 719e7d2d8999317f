"""Parts of the network that a resilient job goes on without, as its ranks report them.

All ranks that used the part report it. It is one finding until something is acknowledged over it again. Until then
its host's other NICs carry its share, and are not reported as slow.
"""

from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.connections import progress_s
from c4bench.c4d.observe.job_view import JobView
from c4bench.model.diagnosis import Cause, Component, Diagnosis, NetworkLoss, Syndrome


class RankReportedLosses:
    """Tracks network losses reported by one job's ranks."""

    def __init__(self, view: JobView, clocks: HostClocks) -> None:
        self._view = view
        self._clocks = clocks
        self._pending: list[tuple[str, NetworkLoss]] = []
        self._standing: dict[Component, float] = {}
        self._back_s: dict[str, float] = {}

    def ingest(self, comm: str, loss: NetworkLoss) -> None:
        """Ingest a loss reported by a member of a communicator."""
        if comm in self._view.comms and loss.rank in self._view.comms[comm].ranks:
            self._pending.append((comm, loss))

    def evaluate(self, now_s: float) -> list[Diagnosis]:
        """New findings; parts that carry bytes again are dropped."""
        for component in [
            component for component, since_s in self._standing.items() if self._carries(component, since_s)
        ]:
            del self._standing[component]
            self._back_s.update(dict.fromkeys(_nics(component), now_s))
        diagnoses = []
        for comm, loss in self._pending:
            if comm not in self._view.comms or self._is_over(comm, loss):
                continue
            known = {nic for component in self._standing for nic in _nics(component)}
            if known.isdisjoint(_nics(loss.component)):
                diagnoses.append(self._finding(comm, loss).stamped(self._view.job, now_s, now_s))
            self._standing.setdefault(loss.component, now_s)
        self._pending.clear()
        return diagnoses

    def _is_over(self, comm: str, loss: NetworkLoss) -> bool:
        """Whether the reported loss is over already."""
        onset_s = self._onset_s(comm, loss)
        return any(onset_s < self._back_s.get(nic, onset_s) for nic in _nics(loss.component))

    def _onset_s(self, comm: str, loss: NetworkLoss) -> float:
        """The onset on the master's clock (s)."""
        return loss.onset_s + self._clocks.offset_s(self._view.comms[comm].hosts[loss.rank])

    def explains(self, component: Component) -> bool:
        """Whether a NIC or path is slow because its host has lost another."""
        hosts = {_host(nic) for component in self._standing for nic in _nics(component)}
        return any(_host(nic) in hosts for nic in _nics(component))

    def _carries(self, component: Component, since_s: float) -> bool:
        """Whether a message has been acknowledged over a component since then."""
        ends = set(_nics(component))
        return any(
            progress_s(self._clocks, view) > since_s
            for view in self._view.conns.values()
            if ends <= {view.record.source, view.record.destination}
        )

    def _finding(self, comm: str, loss: NetworkLoss) -> Finding:
        view = self._view.comms[comm]
        evidence = [f"rank {view.ranks[loss.rank]} and those it shares it with go on without it"]
        if loss.alternatives:
            evidence.append("their probes cannot tell it from " + " or ".join(map(str, loss.alternatives)))
        return Finding(
            Syndrome.COMMUNICATION_SLOW,
            Cause.CONNECTION_LOST,
            loss.component,
            self._onset_s(comm, loss),
            confidence(len(loss.alternatives)),
            tuple(evidence),
            f"a message that crosses {loss.component}",
            alternatives=loss.alternatives,
        )


def _nics(component: Component) -> tuple[str, ...]:
    """The NICs that a component is, or joins."""
    return tuple(component.name.split(">")) if component.kind in ("nic", "path") else ()


def _host(nic: str) -> str:
    return nic.rpartition("/")[0]
