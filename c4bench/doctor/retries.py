"""What a QP's time-out and retries mean on a host's NICs. Pure."""

from collections.abc import Iterable

from c4bench.cost.ack_timeout import Nic, detection
from c4bench.doctor.findings import Device
from c4bench.units import format_time

# NCCL's defaults: NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT.
TIMEOUT, RETRIES = 20, 7
_MODELLED = "mlx5_core"


def meaning(devices: Iterable[Device]) -> str:
    """When NCCL's QPs give up a peer that does not answer, by the model of ConnectX-6; "" where no NIC is like it."""
    floors = {device.ack_floor for device in devices if device.driver == _MODELLED}
    if not floors:
        return ""
    shipped, off = (detection(nic, TIMEOUT, RETRIES).usual_s for nic in (Nic.CX6, Nic.CX6_FLOOR_OFF))
    times = {
        True: f"{format_time(shipped)} (acknowledgement time-out floor on)",
        False: f"{format_time(off)} (acknowledgement time-out floor off)",
        None: f"{format_time(shipped)}, or {format_time(off)} if the floor is off, which root reads with mlxreg",
    }
    usual = " and ".join(text for floor, text in times.items() if floor in floors)
    return f"as ConnectX-6, QPs of timeout {TIMEOUT} and retry_cnt {RETRIES} give up after {usual}"
