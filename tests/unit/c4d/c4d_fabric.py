"""A leaf-spine fabric of paths, whose links are named FROM>TO in place of the address at the far end."""

from itertools import pairwise


class LeafSpine:
    """Hosts with one NIC, three under each leaf, and two spines; source port 1 leads over the first, 2 the other."""

    spines = ("spine0", "spine1")

    def __init__(self, leaves):
        self.leaf = {f"h{host}/0": f"leaf{host // 3}" for host in range(3 * leaves)}
        self.paths = {
            (a, b, port): self.links(a, b, spine)
            for a in self.leaf
            for b in self.leaf
            if a != b
            for port, spine in enumerate(self.spines, start=1)
        }

    def links(self, source, destination, spine):
        """The links of a path between two NICs, over a spine unless they are under one leaf."""
        near, far = self.leaf[source], self.leaf[destination]
        nodes = [source, near, *((spine, far) if near != far else ()), destination]
        return tuple(f"{a}>{b}" for a, b in pairwise(nodes))

    def answer(self, probe, dead, draw):
        """The address that answers a packet that expires, "" for none; leaves return answers by any spine."""
        out = self.paths[probe[:3]][: probe.hops]
        switch = out[-1].partition(">")[2]
        if switch.startswith("spine"):
            back = (f"{switch}>{self.leaf[probe.source]}", f"{self.leaf[probe.source]}>{probe.source}")
        else:
            near = next(nic for nic in self.leaf if self.leaf[nic] == switch and nic != probe.source)
            back = self.links(near, probe.source, draw.choice(self.spines))[1:]
        return "" if {*out, *back} & dead else out[-1]
