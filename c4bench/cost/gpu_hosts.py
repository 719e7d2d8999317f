"""Bounds of collectives among hosts with a rank for each GPU: what neither NICs nor the inside of a host can exceed.

Bandwidths are bus bandwidths as nccl-tests defines them, bit/s, so that an algorithm's bound is that of its scarcest
part and depends on no array size.
"""

from collections.abc import Sequence


def ring_bound_bps(nics_bps: Sequence[float], inside_bps: float, hosts: int, gpus: int) -> float:
    """The bus bandwidth of one ring for each NIC of a host, each through all `gpus` of all `hosts`.

    The channels' shares are in proportion to `nics_bps`, what each NIC carries of payload. An edge of a ring carries as
    much as any other. From each GPU all rings go on inside the host, except the one that leaves it there; `inside_bps`
    is what a GPU can send there, 0 without a limit.
    """
    if hosts == 1:
        return inside_bps
    whole = sum(nics_bps)
    least = min(nics_bps) if gpus <= len(nics_bps) else 0.0
    if not inside_bps or gpus == 1 or whole == least:
        return whole
    return min(whole, inside_bps * whole / (whole - least))
