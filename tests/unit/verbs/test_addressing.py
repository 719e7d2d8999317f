"""GIDs by type and address, and address vectors of both link layers."""

import pytest

from c4bench.model.fabric import Nic
from c4bench.verbs.addressing import ETHERNET, INFINIBAND, Gid, PathAttributes, address_vector, path_mtu, pick_gid
from c4bench.verbs.device import address_handle
from c4bench.verbs.transport import Remote

NIC = Nic("h0", 0, "mlx5_0", "eth2", "10.0.0.1", 1e11, dscp=26, service_level=3)
MAPPED = "0000:0000:0000:0000:0000:ffff:0a00:0001"
LOCAL = "fe80:0000:0000:0000:00c4:00ff:fe00:0001"
ROCE = [
    Gid(0, LOCAL, "RoCE v1"),
    Gid(1, LOCAL, "RoCE v2"),
    Gid(2, MAPPED, "RoCE v1"),
    Gid(3, MAPPED, "RoCE v2"),
]
PORT_GID = "fe80:0000:0000:0000:0c42:a103:0065:1234"
ALIAS = "fe80:0000:0000:0000:0000:0000:0000:0042"
SUBNETS = [Gid(0, PORT_GID, "IB"), Gid(1, ALIAS, "IB")]


@pytest.mark.parametrize("order", [1, -1])
def test_gid_is_chosen_by_type_and_address(order):
    """The RoCE v2 entry of an IPv4 or IPv6 address is chosen, at any index."""
    assert pick_gid(ROCE[::order], ETHERNET, "10.0.0.1") == ROCE[3]
    assert pick_gid(ROCE[::order], ETHERNET, LOCAL) == ROCE[1]
    assert pick_gid(ROCE[::order], ETHERNET, "10.0.0.2") is None


def test_infiniband_falls_back_to_the_port_gid():
    """On InfiniBand an alias is chosen by its text, and the port's own GID for an address that is no GID."""
    assert pick_gid(SUBNETS, INFINIBAND, ALIAS) == SUBNETS[1]
    assert pick_gid(SUBNETS, INFINIBAND, "10.0.0.1") == SUBNETS[0]
    assert pick_gid(SUBNETS, INFINIBAND, "") == SUBNETS[0]
    assert pick_gid([], INFINIBAND, "10.0.0.1") is None


def test_ethernet_is_always_routed():
    """On Ethernet the address vector has a global header with the flow label and no LIDs."""
    peer, path = Remote("::ffff:10.0.0.2", 7, lid=9), PathAttributes(0x123, 2)
    vector = address_vector(NIC, ETHERNET, ROCE[3], peer, path, 64)
    assert vector == (MAPPED.replace("0a00:0001", "0a00:0002"), 3, 0x123, 64, True, 0, 0, 104, 3)
    assert address_vector(NIC, ETHERNET, ROCE[3], peer, path, 64, 32) == vector._replace(traffic_class=32)


def test_infiniband_uses_lids_and_path_bits():
    """Within a subnet InfiniBand addresses by LID, path bits on both LIDs, and needs no global header."""
    far = Remote("fe80::1", 7, lid=0x40)
    vector = address_vector(NIC, INFINIBAND, SUBNETS[0], far, PathAttributes(path_bits=3), 64)
    assert (vector.is_global, vector.dlid, vector.src_path_bits) == (False, 0x43, 3)


@pytest.mark.parametrize("far", [Remote("fec0::1", 7, lid=0x40), Remote("fe80::1", 7)])
def test_infiniband_routes_to_other_subnets(far):
    """Another subnet prefix, or a far end without a LID, takes a global header."""
    assert address_vector(NIC, INFINIBAND, SUBNETS[0], far, PathAttributes(), 64).is_global


@pytest.mark.parametrize(("own", "far", "code"), [(4096, 1024, 3), (256, 4096, 1), (2048, 0, 4), (4096, 4096, 5)])
def test_path_mtu_is_the_smaller_one(own, far, code):
    """The verbs code of the smaller MTU; an unknown far end does not count."""
    assert path_mtu(own, far) == code


def test_gids_tell_their_ip_address():
    """An IPv4-mapped GID is an IPv4 address, any other an IPv6 address."""
    assert (ROCE[3].address, SUBNETS[1].address) == ("10.0.0.1", "fe80::42")


def test_verbs_get_what_the_vector_says():
    """The address handle of an InfiniBand path has LIDs, service level and no header, a routed one header and label."""
    near = address_handle(
        address_vector(NIC, INFINIBAND, SUBNETS[0], Remote("fe80::1", 7, 0x40), PathAttributes(path_bits=3), 64), 2
    )
    assert (near.is_global, near.dlid, near.src_path_bits, near.port_num, near.sl) == (0, 0x43, 3, 2, 3)
    routed = address_handle(
        address_vector(NIC, ETHERNET, ROCE[3], Remote("::ffff:10.0.0.2", 7), PathAttributes(0x123), 64), 1
    )
    assert (routed.is_global, routed.flow_label, routed.sgid_index, routed.hop_limit) == (1, 0x123, 3, 64)
    assert (routed.traffic_class, routed.sl) == (26 << 2, 3)


def test_class_is_0_unless_the_inventory_states_one():
    """A NIC without a DSCP and a service level sends in traffic class 0 and service level 0."""
    plain = Nic("h0", 0, "mlx5_0", "eth2", "10.0.0.1", 1e11)
    vector = address_vector(plain, ETHERNET, ROCE[3], Remote("::ffff:10.0.0.2", 7), PathAttributes(), 64)
    assert (vector.traffic_class, vector.service_level) == (0, 0)
