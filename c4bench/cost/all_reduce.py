"""The least time that a collective of ranks with a GPU and a NIC each can take, and which all-reduce takes the least.

What the busiest NIC must send, and what the busiest GPU must send to others of its host, each divided by the rate of
that. Bytes are counted, and the time of the first and the last message is not: no schedule is faster.
"""

from collections.abc import Collection

import msgspec

# What a short message takes between NICs of two hosts, with what both ends do (ib_write_lat: 2 to 5 us).
_HOP_S = 5e-6
# A node of two trees has at most four neighbours: a parent and two children in one, and a parent in the other.
_TREE_NEIGHBOURS = 4


class GpuHosts(msgspec.Struct, frozen=True):
    """So many hosts with so many ranks each; the payload (bit/s) of a rank's NIC, and of a GPU's link to its host's.

    `hop_s` is how long a message without bytes takes to another host, `inside_hop_s` to another rank of the host.
    """

    hosts: int
    gpus: int
    nic_bps: float
    inside_bps: float = float("inf")
    hop_s: float = _HOP_S
    inside_hop_s: float = 0.0

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.hosts * self.gpus


class Load(msgspec.Struct, frozen=True):
    """What a collective puts on the busiest NIC and on the busiest GPU's link, as fractions of a rank's array.

    `hops` and `inside_hops` is the longest chain of messages that depend on each other.
    """

    nic: float
    inside: float
    hops: int = 0
    inside_hops: int = 0

    def least_s(self, size_bytes: int, shape: GpuHosts) -> float:
        """The least time for an array of so many bytes, without that of the first and last messages."""
        return 8 * size_bytes * max(self.nic / shape.nic_bps, self.inside / shape.inside_bps)


def ring(shape: GpuHosts) -> Load:
    """A ring for each NIC through all GPUs of a host, which leaves the host by this NIC."""
    whole = 2 * (shape.ranks - 1) / shape.ranks
    hops, inside_hops = 2 * (shape.hosts - 1), 2 * shape.hosts * (shape.gpus - 1)
    if shape.hosts == 1:
        # One channel does it all.
        return Load(0.0, whole, 0, 2 * (shape.gpus - 1))
    return Load(whole / shape.gpus, whole * (shape.gpus - 1) / shape.gpus, hops, inside_hops)


def tree(shape: GpuHosts) -> Load:
    """Two trees for each NIC, of half of its share each, that join hosts; each goes on in a chain through the GPUs."""
    neighbours = min(shape.hosts, _TREE_NEIGHBOURS) if shape.hosts > 1 else 0
    height = (shape.hosts - 1).bit_length()
    return Load(neighbours / 2 / shape.gpus, 2 * (shape.gpus - 1) / shape.gpus, 2 * height, 2 * (shape.gpus - 1))


def hierarchical(shape: GpuHosts) -> Load:
    """A reduce-scatter inside, an all-reduce of a block over each rail, an all-gather inside."""
    rail = 2 * (shape.hosts - 1) / shape.hosts / shape.gpus
    return Load(rail, 2 * (shape.gpus - 1) / shape.gpus, 2 * (shape.hosts - 1), 2 * (shape.gpus - 1))


def all_to_all(shape: GpuHosts) -> Load:
    """Each message inside the host to the GPU on the receiver's rail, then by that one's NIC (PXN)."""
    return Load((shape.hosts - 1) / shape.hosts, (shape.gpus - 1) / shape.gpus, 1, 1)


ALL_REDUCES = {"ring": ring, "tree": tree, "hierarchical": hierarchical}


def expected_s(algorithm: str, size_bytes: int, shape: GpuHosts) -> float:
    """The time of an all-reduce: the chain of messages that depend on each other, and the bytes."""
    load = ALL_REDUCES[algorithm](shape)
    return load.hops * shape.hop_s + load.inside_hops * shape.inside_hop_s + load.least_s(size_bytes, shape)


def fastest(size_bytes: int, shape: GpuHosts, among: Collection[str] = tuple(ALL_REDUCES)) -> str:
    """The all-reduce that takes the least time; where several take it, the first of these."""
    return min(among, key=lambda algorithm: expected_s(algorithm, size_bytes, shape))
