"""nccl-tests on the same hosts: what NCCL gets of the fabric, where there are GPUs."""

import nccl_tests
import pytest

from c4bench import remote
from c4bench.units import payload_bound

WITHIN_S = 900.0


@pytest.mark.nightly
@pytest.mark.needs("gpu", hosts=2)
@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all"])
def test_nccl_is_exact_and_has_the_fabric(program, rdma_hosts, inventory, measure, collective):
    """No value is out of bounds; bus bandwidth is told beside what the NICs carry."""
    first, tool = rdma_hosts[0], nccl_tests.PROGRAMS[collective]
    if not program.has(tool, rdma_hosts):
        pytest.skip(f"no-nccl-tests: the hosts have no {tool} on PATH; build nccl-tests with MPI=1")
    with remote.connect(first.name, inventory.access[first.name]) as connection:
        gpus = int(connection.run(["sh", "-c", "nvidia-smi -L | wc -l"], timeout_s=30.0).stdout)
    settings = nccl_tests.settings(rdma_hosts)
    words = ["mpirun", tool, *nccl_tests.SIZES]
    ran = program(words, hosts=rdma_hosts, slots=gpus, environment=settings, attach=False)
    ran.wait(WITHIN_S)
    found = [figure for figure in ran.figures if figure.tool == "nccl-tests"]
    measure("nccl.out_of_bounds", sum(figure.wrong or 0 for figure in found), equals=0, collective=collective)
    best = max(figure.value for figure in found)
    bound = sum(payload_bound(nic.rate_bps) for nic in first.nics)
    labels = {"collective": collective, "hosts": len(rdma_hosts), "gpus": gpus}
    measure("nccl.busbw_fraction", best / bound, unit="1", **labels)
