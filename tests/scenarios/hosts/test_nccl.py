"""nccl-tests on the same hosts: what NCCL gets of the fabric, where there are GPUs."""

import nccl_tests
import pytest

from c4bench import remote
from c4bench.units import payload_bound

WITHIN_S = 900.0


@pytest.mark.nightly
@pytest.mark.needs("gpu", hosts=2)
@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all"])
def test_nccl_is_exact_and_has_the_fabric(rdma_hosts, inventory, measure, collective):
    """No value is out of bounds; bus bandwidth is told beside what the NICs carry."""
    first = rdma_hosts[0]
    with remote.connect(first.name, inventory.access[first.name]) as connection:
        for tool in ("mpirun", nccl_tests.PROGRAMS[collective]):
            if connection.run(["sh", "-c", f"command -v {tool}"], timeout_s=30.0, check=False).code:
                pytest.skip(f"no-nccl-tests: {first.name} has no {tool} on its PATH; build nccl-tests with MPI=1")
        gpus = int(connection.run(["sh", "-c", "nvidia-smi -L | wc -l"], timeout_s=30.0).stdout)
        words = nccl_tests.command(collective, rdma_hosts, gpus)
        found = nccl_tests.read(connection.run(words, timeout_s=WITHIN_S).stdout.decode(errors="replace"))
    measure("nccl.out_of_bounds", found.out_of_bounds, equals=0, collective=collective)
    best = max(row.busbw_bps for row in found.rows)
    bound = sum(payload_bound(nic.rate_bps) for nic in first.nics)
    labels = {"collective": collective, "hosts": len(rdma_hosts), "gpus": gpus}
    measure("nccl.busbw_fraction", best / bound, unit="1", **labels)
