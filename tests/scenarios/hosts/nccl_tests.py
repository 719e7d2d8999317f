"""nccl-tests, to compare our collectives with: its command line for a set of hosts, and a parser of its output.

Written against nccl-tests' documented options and recorded output; not yet run on hardware by this project.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.model.fabric import Host

PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
}
_RANK = r"^(?:\s*\d+:)?\s*"  # srun --label puts the task before each line
_ROW = re.compile(_RANK + r"(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+(.+)$")
_WRONG = re.compile(r"# Out of bounds values\s*:\s*(\d+)")
_MEAN = re.compile(r"# Avg bus bandwidth\s*:\s*([\d.]+)")
_GIGABYTE_BITS = 8e9


class Row(msgspec.Struct, frozen=True):
    """The out-of-place result of one size. `wrong` is None if the collective is not checked."""

    size_bytes: int
    time_s: float
    algbw_bps: float
    busbw_bps: float
    wrong: int | None


class Result(msgspec.Struct, frozen=True):
    """A run: rows by size, their mean bus bandwidth, and the number of values out of bounds."""

    rows: tuple[Row, ...]
    busbw_bps: float
    out_of_bounds: int


def command(collective: str, hosts: Sequence[Host], gpus: int, smallest: str = "8M", largest: str = "1G") -> list[str]:
    """The command that runs `collective` on `gpus` GPUs of each host with Open MPI, over the inventory's RDMA devices.

    Raises KeyError for a collective that nccl-tests does not have.
    """
    places = ",".join(f"{host.address}:{gpus}" for host in hosts)
    settings = [word for setting in _settings(hosts) for word in ("-x", setting)]
    launch = ["mpirun", "--allow-run-as-root", "-np", str(gpus * len(hosts)), "-H", places, *settings]
    return [*launch, PROGRAMS[collective], "-b", smallest, "-e", largest, "-f", "2", "-g", "1"]


def _settings(hosts: Sequence[Host]) -> Iterator[str]:
    """NCCL's variables: the devices, and the class if all NICs have the same, because NCCL has one for all."""
    nics = [nic for host in hosts for nic in host.nics if nic.device]
    if nics:
        yield f"NCCL_IB_HCA=={','.join(sorted({nic.device for nic in nics}))}"  # `=` within: exactly these
    classes = {(nic.traffic_class, nic.service_level) for nic in nics}
    if len(classes) == 1:
        ((traffic_class, service_level),) = classes
        yield f"NCCL_IB_TC={traffic_class}"
        yield f"NCCL_IB_SL={service_level}"


def read(output: str) -> Result:
    """Parse the output of nccl-tests. Raises UnhealthyError if it did not finish."""
    wrong, mean = _WRONG.search(output), _MEAN.search(output)
    rows = tuple(_row(match) for line in output.splitlines() if (match := _ROW.match(line)))
    if not (wrong and mean and rows):
        last = (output.strip().splitlines() or ["nothing"])[-1].strip()
        raise UnhealthyError(f"nccl-tests did not finish; its last output: {last[:200]}")
    return Result(rows, float(mean[1]) * _GIGABYTE_BITS, int(wrong[1]))


def _row(match: re.Match[str]) -> Row:
    time_us, algbw, busbw, wrong = match[6].split()[:4]
    return Row(
        size_bytes=int(match[1]),
        time_s=float(time_us) * 1e-6,
        algbw_bps=float(algbw) * _GIGABYTE_BITS,
        busbw_bps=float(busbw) * _GIGABYTE_BITS,
        wrong=None if wrong == "N/A" else int(float(wrong)),
    )
