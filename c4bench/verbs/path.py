"""Path attributes of a connection, and the arithmetic of flow labels and UDP source ports."""

from typing import NamedTuple

FIRST_PORT = 0xC000
LAST_PORT = 0xFFFF
SOURCE_PORTS = range(FIRST_PORT, LAST_PORT + 1)
_PORT_BITS = 14
_LOW = 0x3FFF
_LABEL_MASK = 0xFFFFF


class PathAttributes(NamedTuple):
    """The path fields of an address vector: GRH flow label (20 bits) and LID path bits (below 2^LMC)."""

    flow_label: int = 0
    path_bits: int = 0


DEFAULT_PATH = PathAttributes()


def label_for(source_port: int) -> int:
    """The flow label that folds to a UDP source port; 0 for 0. Raises ValueError outside 0xC000 to 0xFFFF."""
    if not source_port:
        return 0
    if source_port not in SOURCE_PORTS:
        raise ValueError(f"source port {source_port} is outside {FIRST_PORT}..{LAST_PORT}")
    # Label 0 means ECMP, so port 0xC000 needs high bits that cancel low bits.
    return source_port & _LOW or (1 << _PORT_BITS) | 1


def port_of(flow_label: int, local_qp: int, remote_qp: int) -> int:
    """Linux's `rdma_get_udp_sport`: a label of 0 is derived from both QP numbers, then folded."""
    label = flow_label or ecmp_label(local_qp, remote_qp)
    return ((label & _LOW) ^ (label >> _PORT_BITS)) | FIRST_PORT


def ecmp_label(local_qp: int, remote_qp: int) -> int:
    """The flow label that Linux derives for a connection without one (`rdma_calc_flow_label`)."""
    product = local_qp * remote_qp
    product ^= product >> 20
    product ^= product >> 40
    return product & _LABEL_MASK
