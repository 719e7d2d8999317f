"""nccl-tests, to compare our collectives with: its programs, and NCCL's settings for a set of hosts.

Written against nccl-tests' documented options; not yet run on hardware by this project.
"""

from collections.abc import Sequence

from c4bench.model.fabric import Host

PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
}
SIZES = ("-b", "8M", "-e", "1G", "-f", "2", "-g", "1")


def settings(hosts: Sequence[Host]) -> dict[str, str]:
    """NCCL's variables: the devices, and the class if all NICs have the same, because NCCL has one for all."""
    nics = [nic for host in hosts for nic in host.nics if nic.device]
    if not nics:
        return {}
    found = {"NCCL_IB_HCA": f"={','.join(sorted({nic.device for nic in nics}))}"}  # `=`: exactly these
    classes = {(nic.traffic_class, nic.service_level) for nic in nics}
    if len(classes) == 1:
        ((traffic_class, service_level),) = classes
        found |= {"NCCL_IB_TC": str(traffic_class), "NCCL_IB_SL": str(service_level)}
    return found
