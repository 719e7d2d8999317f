"""Witnesses by echo requests (ICMP) sent from the interface."""

import math
import statistics
from itertools import pairwise

from c4bench.inject import interfaces
from c4bench.inject.registry import witness
from c4bench.inject.witness.base import Aftermath, Evidence, Values
from c4bench.inject.witness.probe import Echoes, Prober
from c4bench.model.fault import FaultRequest

# The number of probes is chosen for about 20 expected losses, between a minimum and a maximum.
_LOSSES_EXPECTED, _PROBES_MIN, _PROBES_MAX = 20, 40, 50_000
# Accepted deviation of a binomial count, in standard deviations; share of probes that a flipped bit does not damage.
_SIGMAS, _HARMLESS = 4.0, 0.02
_PROBE_BYTES = 1024
# After the revert this share of the fault's loss is accepted: probes in flight when it ended.
_RESIDUAL_LOSS = 0.05


@witness("echo_loss")
class EchoLoss:
    """`sent` and `lost` probes. Seen when the loss fits the requested probability."""

    def __init__(self, request: FaultRequest) -> None:
        probability = float(request.parameters.get("probability", 1.0))
        both = request.parameters.get("direction") == "both"
        self._probability = 1 - (1 - probability) ** 2 if both else probability
        self._count = min(_PROBES_MAX, max(_PROBES_MIN, math.ceil(_LOSSES_EXPECTED / self._probability)))
        self._gap_s = request.witness_s / self._count
        self._prober = Prober(interfaces.examine(request.interface))
        self._lost_before = 0

    def before(self) -> Values:
        """Count losses before the fault."""
        echoes = self._train()
        self._lost_before = echoes.lost
        return _counts(echoes)

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002  (every probe is sent after the onset)
        """Observed when the first lost probe was sent."""
        echoes = self._train()
        fits = plausible(echoes.lost, len(echoes.sent_s), self._probability) and self._lost_before < echoes.lost / 2
        return Evidence(_counts(echoes), echoes.first_lost_s if fits else None)

    def after(self) -> Aftermath:
        """Recovered when almost none is lost."""
        echoes = self._train()
        expected = self._count * self._probability
        return Aftermath(_counts(echoes), echoes.lost <= max(self._lost_before, _RESIDUAL_LOSS * expected))

    def _train(self) -> Echoes:
        return self._prober.train(self._count, _PROBE_BYTES, self._gap_s)


@witness("echo_delay")
class EchoDelay:
    """`round_trip_s`, the median. Seen when it has grown by at least half of the requested delay."""

    def __init__(self, request: FaultRequest) -> None:
        directions = 2 if request.choice("direction") == "both" else 1
        self._asked_s = request.number("delay_s") * directions
        self._gap_s = request.witness_s / _PROBES_MIN
        self._prober = Prober(interfaces.examine(request.interface))
        self._before_s = math.inf

    def before(self) -> Values:
        """Measure the round trip before the fault."""
        self._before_s = _round_trip_s(self._train())
        return {"round_trip_s": self._before_s}

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002
        """Observed when the first late probe was sent."""
        echoes = self._train()
        threshold_s = self._before_s + self._asked_s / 2
        late = [answer.sent_s for answer in echoes.replies if answer.arrived_s - answer.sent_s >= threshold_s]
        seen = bool(late) and _round_trip_s(echoes) >= threshold_s
        return Evidence({"round_trip_s": _round_trip_s(echoes)}, min(late) if seen else None)

    def after(self) -> Aftermath:
        """Recovered when less than half of the delay remains."""
        left_s = _round_trip_s(self._train())
        return Aftermath({"round_trip_s": left_s}, left_s < self._before_s + self._asked_s / 2)

    def _train(self) -> Echoes:
        return self._prober.train(_PROBES_MIN, gap_s=self._gap_s)


@witness("echo_order")
class EchoOrder:
    """`overtaken`: replies that arrived before that of an earlier probe. Seen when there are more than before."""

    def __init__(self, request: FaultRequest) -> None:
        probes = math.ceil(_LOSSES_EXPECTED / request.number("probability"))
        self._count = max(_PROBES_MIN, probes)
        # Many probes must be in flight at once, or none can overtake.
        self._gap_s = request.number("delay_s") / 10
        self._prober = Prober(interfaces.examine(request.interface))
        self._before = 0

    def before(self) -> Values:
        """Count reordering before the fault."""
        self._before = count_overtaking(self._train())
        return {"overtaken": self._before}

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002
        """Observed when the first overtaking reply arrived."""
        echoes = self._train()
        first = next(
            (later.arrived_s for earlier, later in pairwise(echoes.replies) if later.number > earlier.number + 1), None
        )
        count = count_overtaking(echoes)
        return Evidence({"overtaken": count}, first if count > self._before else None)

    def after(self) -> Aftermath:
        """Recovered when there are no more than before."""
        left = count_overtaking(self._train())
        return Aftermath({"overtaken": left}, left <= self._before)

    def _train(self) -> Echoes:
        return self._prober.train(self._count, gap_s=self._gap_s)


@witness("echo_size")
class EchoSize:
    """`small` and `full`: shares of short and of MTU-sized probes answered. Seen when only short ones are."""

    def __init__(self, request: FaultRequest) -> None:
        target = interfaces.examine(request.interface)
        self._full_bytes = target.mtu_bytes
        self._gap_s = request.witness_s / _PROBES_MIN / 2
        self._prober = Prober(target)
        self._healthy = False

    def before(self) -> Values:
        """Measure both before the fault."""
        small, full = self._trains()
        self._healthy = not small.lost and not full.lost
        return _shares(small, full)

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002
        """Observed when the first lost full-size probe was sent."""
        small, full = self._trains()
        seen = self._healthy and not small.lost and full.lost == len(full.sent_s)
        return Evidence(_shares(small, full), full.first_lost_s if seen else None)

    def after(self) -> Aftermath:
        """Recovered when both are answered again."""
        small, full = self._trains()
        return Aftermath(_shares(small, full), not small.lost and not full.lost)

    def _trains(self) -> tuple[Echoes, Echoes]:
        full = self._prober.train(_PROBES_MIN, self._full_bytes, self._gap_s)
        return self._prober.train(_PROBES_MIN, gap_s=self._gap_s), full


@witness("nics_dead")
class NicsDead:
    """`lost`: share of probes lost over all NICs of the host. Seen when none is answered."""

    def __init__(self, request: FaultRequest) -> None:
        self._gap_s = request.witness_s / _PROBES_MIN
        self._probers = [Prober(interfaces.examine(nic)) for nic in request.nics]
        self._lost_before = 1.0

    def before(self) -> Values:
        """Measure the loss before the fault."""
        self._lost_before, _ = self._measure()
        return {"lost": self._lost_before}

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002
        """Observed when the first lost probe was sent."""
        lost, first_s = self._measure()
        return Evidence({"lost": lost}, first_s if lost == 1.0 and self._lost_before < _RESIDUAL_LOSS else None)

    def after(self) -> Aftermath:
        """Recovered when almost all are answered."""
        lost, _ = self._measure()
        return Aftermath({"lost": lost}, lost <= self._lost_before + _RESIDUAL_LOSS)

    def _measure(self) -> tuple[float, float | None]:
        trains = [prober.train(_PROBES_MIN, gap_s=self._gap_s) for prober in self._probers]
        lost = sum(train.lost for train in trains) / sum(len(train.sent_s) for train in trains)
        return lost, min((train.first_lost_s for train in trains if train.first_lost_s), default=None)


def plausible(lost: int, sent: int, probability: float) -> bool:
    """Whether `probability` explains the number of losses; never for no loss."""
    expected = sent * probability
    spread = _SIGMAS * math.sqrt(expected * (1 - probability))
    return lost > 0 and expected * (1 - _HARMLESS) - spread <= lost <= expected + spread


def count_overtaking(echoes: Echoes) -> int:
    """The number of replies that arrived after one with a larger number."""
    newest, count = -1, 0
    for answer in echoes.replies:
        count += answer.number < newest
        newest = max(newest, answer.number)
    return count


def _counts(echoes: Echoes) -> Values:
    return {"sent": len(echoes.sent_s), "lost": echoes.lost}


def _shares(small: Echoes, full: Echoes) -> Values:
    return {
        "small": 1 - small.lost / len(small.sent_s),
        "full": 1 - full.lost / len(full.sent_s),
    }


def _round_trip_s(echoes: Echoes) -> float:
    trips_s = [answer.arrived_s - answer.sent_s for answer in echoes.replies]
    return statistics.median(trips_s) if trips_s else math.inf
