"""SONiC switch ports, with the switch's own commands: the ASIC does not follow the kernel's interface."""

from c4bench.decoding import whole_number
from c4bench.errors import UnhealthyError
from c4bench.inject.actions import Plan, Run, run
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.registry import driver
from c4bench.model.fault import FaultRequest

_SPEEDS_MBPS = (10_000, 25_000, 40_000, 50_000, 100_000, 200_000, 400_000, 800_000)


@driver("sonic.down")
def down(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Shut the port down; the revert starts it."""
    port = target.interface.netdev
    row = status(run(("show", "interfaces", "status", port), None), port)
    if row["Admin"] != "up":
        raise UnhealthyError(f"{request.where} is shut down already; choose a port that is up")
    return Plan((f"link of {port}",), (_config("shutdown", port),), (_config("startup", port),))


@driver("sonic.speed")
def speed(request: FaultRequest, target: InterfaceTarget) -> Plan:
    """Set the fastest speed at or below the requested share; both ends must support it."""
    port = target.interface.netdev
    row = status(run(("show", "interfaces", "status", port), None), port)
    current_mbps = whole_number(row["Speed"].removesuffix("G")) * 1000
    slower = [speed for speed in _SPEEDS_MBPS if speed <= current_mbps * request.number("fraction")]
    if not slower or request.choice("direction") != "both":
        raise UnhealthyError(
            f"{request.where} runs at {current_mbps} Mb/s and has no such lower speed, or not in one direction; "
            "use direction both and another fraction"
        )
    return Plan(
        (f"link of {port}",), (_config("speed", port, f"{slower[-1]}"),), (_config("speed", port, f"{current_mbps}"),)
    )


def status(text: str, port: str) -> dict[str, str]:
    """The port's row by column. The dashes below the names give the columns' widths."""
    lines = text.splitlines()
    rule = next((index for index, line in enumerate(lines) if line.strip().startswith("---")), 0)
    for line in lines[rule + 1 :]:
        if rule and line.split()[:1] == [port]:
            return _cells(lines[rule - 1], lines[rule], line)
    raise UnhealthyError(f"the switch has no port {port}; see `show interfaces status`")


def _cells(names: str, rule: str, row: str) -> dict[str, str]:
    cells, start = {}, 0
    for dashes in rule.split():
        start = rule.index(dashes, start)
        end = start + len(dashes)
        cells[names[start:end].strip()] = row[start:end].strip()
        start = end
    return cells


def _config(*words: str) -> Run:
    return Run(("config", "interface", *words))
