"""What a NIC's hardware has counted meanwhile, beside what a witness saw: for people, and no evidence of its own.

Counters of retransmissions, losses, errors and pauses tell how a fault was felt. Traffic of others grows them too, so
that they prove nothing.
"""

from c4bench.inject import interfaces
from c4bench.inject.witness.base import Aftermath, Evidence, Values, Witness, plane_of
from c4bench.inject.witness.echo import BY_KERNEL
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest
from c4bench.verbs import counters


class CountedBeside:
    """Another witness, whose values during the fault also have `counted_NAME`: by how much each counter has grown."""

    def __init__(self, witness: Witness, nic: Nic) -> None:
        self.plane = plane_of(witness)
        self._witness, self._nic = witness, nic
        self._statistics = counters.DriverStatistics(nic.netdev, counters.PORT_TROUBLES)
        self._counted: dict[str, int] = {}

    def before(self) -> Values:
        """The other witness's values."""
        self._counted = self._read()
        return self._witness.before()

    def during(self, onset_s: float) -> Evidence:
        """The other witness's evidence, with what has been counted since before the fault."""
        evidence = self._witness.during(onset_s)
        grown = counters.difference(self._counted, self._read())
        return evidence._replace(
            values=evidence.values | {f"counted_{name}": float(change) for name, change in sorted(grown.items())}
        )

    def after(self) -> Aftermath:
        """The other witness's."""
        return self._witness.after()

    def _read(self) -> dict[str, int]:
        hardware = counters.hardware_counters(self._nic.device)
        return {name: count for name, count in hardware.items() if name in counters.COUNTED} | self._statistics.read()


def beside(witness: Witness, request: FaultRequest) -> Witness:
    """The witness with the counters of the request's NIC, if that sends by itself; otherwise the witness alone."""
    nic = request.nic
    return witness if nic is None or interfaces.hardware(nic) in BY_KERNEL else CountedBeside(witness, nic)
