import hypothesis.strategies as st
from fakes import NIC, NOQUEUE, TBF, nic_request, target
from hypothesis import given

from c4bench.errors import UnhealthyError
from c4bench.inject.catalogue import load
from c4bench.inject.registry import DRIVERS

CATALOGUE = load()
FAULTS = [
    nic_request("nic.rate", direction="tx"),
    nic_request("nic.rate", direction="rx"),
    nic_request("nic.loss", direction="tx"),
    nic_request("nic.blackhole", direction="rx"),
    nic_request("nic.down"),
]


class ModelNic:
    """What the kernel does with the commands, as far as the drivers use them; an impossible command is a KeyError."""

    def __init__(self, qdisc):
        self._default = qdisc
        words = "tbf rate 10000000000bit burst 16384 limit 8388608" if "tbf" in qdisc else "noqueue"
        self.state = {"link": "up", "routes": "configured", "root": words}
        if "tbf" in qdisc:
            self.state["child"] = "bfifo"

    def listed(self):
        """The NIC as a driver finds it: the root it has now, under the handle it had from the first."""
        kind, *words = self.state["root"].split()
        if kind == "tbf":
            shown = TBF.replace("1250000000", str(int(words[1].removesuffix("bit")) // 8))
            return target(shown if "tbf" in self._default else shown.replace("8019:", "c4:"))
        return target(NOQUEUE if kind == "noqueue" else NOQUEUE.replace("noqueue", kind).replace("0:", "c4:"))

    def perform(self, action):
        text = " ".join(action.argv)
        tool, _, rest = text.partition(" ")
        if tool == "ip":
            self._ip(rest)
        else:
            self._tc(rest.replace(f"dev {NIC.netdev} ", "").replace(f" dev {NIC.netdev}", ""))

    def _ip(self, text):
        match text.split():
            case ["link", "set", "dev", NIC.netdev, "down"]:
                self.state |= {"link": "down", "routes": ""}
            case ["link", "set", "dev", NIC.netdev, "up"]:
                self.state["link"] = "up"
            case ["link", "add", "name", name, *_]:
                assert name not in self.state
                self.state[name] = ""
            case ["link", "del", "dev", name]:
                del self.state[name]
            case ["-4", "route", "replace", *_]:
                assert self.state["link"] == "up"
                self.state["routes"] = "configured"

    def _tc(self, text):
        match text.split():
            case ["qdisc", "add", "root", "handle", "c4:", *words]:
                assert self.state["root"] == "noqueue"
                self.state["root"] = " ".join(words)
            case ["qdisc", "del", "root"]:
                assert "noqueue" in self._default
                self.state["root"] = "noqueue"
            case ["qdisc", "change", "root", "handle", "8019:", *words]:
                self.state["root"] = " ".join(words)
                self.state["child"] = self.state["child"] or "bfifo"
            case ["qdisc", "add", "parent", "8019:1", *words]:
                assert self.state["child"] == "bfifo"
                self.state["child"] = " ".join(words)
            case ["qdisc", "del", "parent", "8019:1"]:
                assert self.state["child"]
                self.state["child"] = ""
            case ["qdisc", "add", "ingress"]:
                assert "ingress" not in self.state
                self.state["ingress"] = "empty"
            case ["qdisc", "del", "ingress"]:
                del self.state["ingress"]
            case ["filter", "add", *_]:
                self.state["ingress"] = {"empty": "redirected"}[self.state["ingress"]]


def planned(request, nic):
    """The driver's plan, None where it refuses the NIC as it is."""
    spec, request = CATALOGUE.resolve(request)
    try:
        return DRIVERS[next(iter(spec.drivers.values()))](request, nic.listed())
    except UnhealthyError:
        return None


@given(
    st.sampled_from([TBF, NOQUEUE]),
    st.lists(st.tuples(st.sampled_from(["apply", "revert"]), st.integers(0, len(FAULTS) - 1)), max_size=30),
)
def test_overlapping_faults_leave_a_nic_as_it_was(qdisc, steps):
    """Faults that are let in together come and go in any order; when the last has gone nothing is left of any."""
    nic = ModelNic(qdisc)
    before = dict(nic.state)
    held = {}
    for step, index in steps:
        if step == "revert":
            for action in held.pop(index).revert if index in held else ():
                nic.perform(action)
            continue
        taken = {claim for plan in held.values() for claim in plan.claims}
        plan = planned(FAULTS[index], nic)
        assert plan or held
        if plan and not taken & set(plan.claims):
            held[index] = plan
            for action in plan.apply:
                nic.perform(action)
    for plan in held.values():
        for action in plan.revert:
            nic.perform(action)
    assert nic.state == before
