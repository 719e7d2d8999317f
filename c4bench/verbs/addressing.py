"""Addresses and paths of connections: GIDs, LIDs, flow labels, UDP source ports, address vectors. Needs no device."""

import ipaddress
from collections.abc import Iterable
from typing import NamedTuple

from c4bench.model.fabric import Nic
from c4bench.verbs.transport import Remote

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


ETHERNET = "Ethernet"
INFINIBAND = "InfiniBand"
ROCE_V2 = "RoCE v2"
ROCE_V1 = "RoCE v1"
IB = "IB"
_SMALLEST_MTU_BYTES = 256


class PortStatus(NamedTuple):
    """The current state of a port. `state` is the verbs name (`ACTIVE`, `DOWN`), `active_mtu_bytes` the path MTU."""

    state: str
    active_mtu_bytes: int
    link_layer: str
    lid: int = 0
    lmc: int = 0


class Gid(NamedTuple):
    """An entry of a port's GID table. `kind` is `RoCE v2`, `RoCE v1` or `IB`; `netdev` may be unknown."""

    table_index: int
    text: str
    kind: str
    netdev: str = ""

    @property
    def address(self) -> str:
        """The IP address of the GID."""
        parsed = ipaddress.IPv6Address(self.text)
        return str(parsed.ipv4_mapped or parsed)


class AddressVector(NamedTuple):
    """The fields of an address handle, as in `struct ibv_ah_attr`; GRH fields are used if `is_global`."""

    dgid: str
    sgid_index: int
    flow_label: int
    hop_limit: int
    is_global: bool
    dlid: int
    src_path_bits: int
    traffic_class: int
    service_level: int


def pick_gid(table: Iterable[Gid], link_layer: str, address: str) -> Gid | None:
    """The entry for `address`, an IP address or a GID; not by index, because that may change after a link flap.

    On Ethernet it must be RoCE v2. On InfiniBand `address` may be the IPoIB address, which is not a GID; entry 0, which
    is always the port's own (InfiniBand Architecture Specification, volume 1, 4.1.1), is used then.
    """
    own_address = str(ipaddress.ip_address(address)) if address else ""
    candidates = [gid for gid in table if gid.kind == (IB if link_layer == INFINIBAND else ROCE_V2)]
    named = next((gid for gid in candidates if gid.address == own_address), None)
    if named or link_layer != INFINIBAND:
        return named
    return next((gid for gid in candidates if gid.table_index == 0), None)


def address_vector(
    nic: Nic,
    link_layer: str,
    own: Gid,
    remote: Remote,
    path: PathAttributes,
    hop_limit: int,
    traffic_class: int | None = None,
) -> AddressVector:
    """The address vector from `nic` to `remote` with path attributes `path`; by default the NIC's traffic class.

    Ethernet always has a global route header. InfiniBand needs one only towards another subnet.
    """
    on_infiniband = link_layer == INFINIBAND
    return AddressVector(
        # Python 3.13 writes an address that is mapped from IPv4 with dots, which pyverbs does not take.
        dgid=ipaddress.IPv6Address(remote.gid).packed.hex(":", 2),
        sgid_index=own.table_index,
        flow_label=path.flow_label,
        hop_limit=hop_limit,
        is_global=not on_infiniband or not remote.lid or _subnet(own.text) != _subnet(remote.gid),
        dlid=remote.lid | path.path_bits if on_infiniband else 0,
        src_path_bits=path.path_bits if on_infiniband else 0,
        traffic_class=nic.traffic_class if traffic_class is None else traffic_class,
        service_level=nic.service_level,
    )


def path_mtu(own_bytes: int, far_bytes: int) -> int:
    """`enum ibv_mtu` of the smaller of both ends' active MTUs; a far end of 0 is unknown and ignored."""
    return (min(own_bytes, far_bytes or own_bytes) // _SMALLEST_MTU_BYTES).bit_length()


def _subnet(gid: str) -> int:
    return int(ipaddress.IPv6Address(gid)) >> 64
