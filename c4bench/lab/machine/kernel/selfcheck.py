"""Check a built kernel before use: a seed gives the same bytes twice, RDMA is at line rate, boots end cleanly."""

import re
import sys
from pathlib import Path

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.lab import topology_file
from c4bench.lab.machine.kernel.cache import Kernel
from c4bench.lab.machine.kernel.progress import Progress
from c4bench.lab.machine.launch import LAB_DIRECTORY, launch
from c4bench.lab.selfcheck import Report
from c4bench.units import payload_bound

_TOPOLOGY = "pair"
_SEED = 1
_BOOTS = ("first", "again")
_LIMIT_S = 120.0  # a boot takes a tenth of it on two quiet cores
_OF_BOUND = (0.95, 1.005)
_TROUBLE = re.compile(r"(?:BUG|WARNING|INFO: task|Oops|Kernel panic|Call Trace)\b.*")


def prove(built: Kernel, scratch: Path) -> Report:
    """Boot it twice, with all files in `scratch`. Raises UnhealthyError if it fails the check."""
    reports = []
    with Progress("checking the built kernel") as progress:
        for number, name in enumerate(_BOOTS):
            reports.append(_boot(built, scratch / name))
            progress.show((number + 1) / len(_BOOTS))
    if len(set(reports)) > 1:
        raise _unfit(built, "two boots of one seed did not give the same bytes")
    report = msgspec.json.decode(reports[0], type=Report)
    fraction = report.goodput_bps / payload_bound(topology_file.load(_TOPOLOGY).nic_rate_bps)
    least, most = _OF_BOUND
    if not least <= fraction <= most:
        raise _unfit(built, f"RDMA runs at {fraction:.3f} of the payload bound, not {least:g} to {most:g}")
    return report


def _boot(built: Kernel, directory: Path) -> bytes:
    directory.mkdir()
    report = directory / "report.json"
    command = [sys.executable, "-m", "c4bench.lab.guest.selfcheck", str(report)]
    fabric = topology_file.load(_TOPOLOGY)
    try:
        ended = launch(fabric, command, directory, seed=_SEED, agents=False, limit_s=_LIMIT_S, kernel=built)
    except UnhealthyError as error:
        raise _unfit(built, str(error).splitlines()[0]) from None
    if ended.exit_code:
        raise _unfit(built, f"a transfer in the lab ended with exit code {ended.exit_code}")
    trouble = _TROUBLE.search((directory / LAB_DIRECTORY / "dmesg.log").read_text(errors="replace"))
    if trouble:
        raise _unfit(built, f"it says: {trouble[0]}")
    return report.read_bytes()


def _unfit(built: Kernel, why: str) -> UnhealthyError:
    return UnhealthyError(f"the built kernel (Linux {built.version}) failed its check and is not used: {why}")
