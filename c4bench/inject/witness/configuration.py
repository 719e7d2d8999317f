"""The witness of a wrong setting: what the switch says of itself reads back otherwise."""

from c4bench.inject.agentless import SwitchWitness
from c4bench.inject.registry import witness
from c4bench.model.fault import FaultRequest


@witness("configuration")
def configuration(request: FaultRequest) -> SwitchWitness:
    """Compare the configuration of a switch that is changed over SSH with that before."""
    return SwitchWitness(request, "configuration")
