"""Faults as data: what the catalogue offers, what is asked for, how long it holds, and what was seen of it."""

from enum import StrEnum
from typing import Literal

import msgspec

from c4bench.errors import UsageError
from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.fabric import Nic

Value = float | str
# The kinds of hardware that the embedded lab has.
OF_LAB = ("rxe", "ethernet", "simulated")


class TargetKind(StrEnum):
    """What a fault affects."""

    NIC = "nic"
    PORT = "port"
    SWITCH = "switch"
    HOST = "host"
    PROCESS = "process"
    GPU = "gpu"
    COMPOUND = "compound"


class BlastRadius(StrEnum):
    """How far the damage of a fault goes, narrowest first."""

    PROCESS = "process"
    NIC = "nic"
    LINK = "link"
    HOST = "host"
    SWITCH = "switch"
    FABRIC = "fabric"

    def within(self, limit: "BlastRadius") -> bool:
        """Whether it goes no further than `limit`."""
        order = list(BlastRadius)
        return order.index(self) <= order.index(limit)


class Misconfiguration(StrEnum):
    """Settings of a switch or a host that hurt RDMA, by the names of doctor's rules that find them."""

    PFC_OFF = "pfc_off"
    ECN_OFF = "ecn_off"
    ECN_THRESHOLDS = "ecn_thresholds"
    DSCP_MAP = "dscp_map"
    MTU = "mtu"
    WATCHDOG_OFF = "watchdog_off"
    ADAPTIVE_ROUTING = "adaptive_routing"
    TRUST = "trust"
    TRAFFIC_CLASS = "traffic_class"
    DCQCN = "dcqcn"
    GID = "gid"


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One knob of a fault.

    A `number` lies between `minimum` and `maximum`, both included; a `choice` is one of `choices`. Without a `default`
    the request must give it.
    """

    summary: str
    type: Literal["number", "choice"]
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    default: Value | None = None


class ExpectedVerdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What C4D should say. `side` is empty, `tx`, `rx`, or `direction`: the side that the request's parameter names."""

    syndrome: Syndrome
    component: Literal["nic", "rank", "link", "switch", "host", "gpu"]
    side: Literal["", "tx", "rx", "direction"] = ""


class CompoundStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault of a compound: it begins `after_s` after the first, on the target of that index."""

    fault: str
    target: int
    after_s: float = 0.0
    parameters: dict[str, Value] = {}


class FaultSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault of the catalogue.

    `drivers` names the function that brings it about, by kind of hardware that it can affect; `seen` are those on which
    it was seen to work, and `no_driver` says of other kinds why there is none. `severs` tells that nothing passes the
    target any more. `not_in_lab` is why the embedded lab cannot carry it, empty where it can. `parts` are those of a
    compound, which itself has no drivers and no witness.
    `doctor` is the rule by which `c4bench doctor` must find a wrong setting.
    """

    name: str
    summary: str
    description: str
    target: TargetKind
    capability: str
    blast_radius: str
    reach: BlastRadius
    drivers: dict[str, str] = {}
    witness: str = ""
    verdict: ExpectedVerdict | None = None
    parameters: dict[str, Parameter] = {}
    severs: bool = False
    not_in_lab: str = ""
    seen: tuple[str, ...] = ()
    no_driver: dict[str, str] = {}
    parts: tuple[CompoundStep, ...] = ()
    doctor: Misconfiguration | None = None

    @property
    def unseen(self) -> tuple[str, ...]:
        """The kinds of hardware for which there is a driver that was never seen to work there."""
        return tuple(kind for kind in self.drivers if kind not in {*OF_LAB, *self.seen})


class SwitchPort(msgspec.Struct, frozen=True):
    """A switch's port. `netns` is where its interface lives when not in its host's own network namespace.

    It answers to the names a NIC has, so that what happens to an interface happens to both alike.
    """

    switch: str
    netdev: str
    netns: str | None = None
    device: str = ""

    @property
    def name(self) -> str:
        """`leaf0/up1`."""
        return f"{self.switch}/{self.netdev}"


Interface = Nic | SwitchPort


class AgentlessSwitch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A switch on which c4bench is not installed: its system, and the words before a command that run it there.

    `ssh` is empty where the switch is this machine. Faults of such a switch are applied by the controller.
    """

    system: str
    ssh: tuple[str, ...] = ()


class FaultRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault, where, how strong, and for how long at most.

    A NIC fault names a `nic`, a port fault the interface `port` of the switch `host`, a process fault a `job` and a
    `rank`, a GPU fault a `gpu`; host and switch faults name nothing besides `host`. `netns` is where a switch's ports
    live. `nics` are all NICs of the host: the last one that works is not cut off unless `last_nic` says so.
    `witness_s` is how long the witness looks before and after the onset. `peers` are NICs of another host, one of each
    plane, which a witness may probe. `switch` says how an agentless switch is reached; None for all others.
    """

    fault: str
    host: str
    nic: Nic | None = None
    job: str | None = None
    rank: int | None = None
    parameters: dict[str, Value] = {}
    lease_s: float = 30.0
    witness_s: float = 0.3
    port: str | None = None
    netns: str | None = None
    gpu: int | None = None
    nics: tuple[Nic, ...] = ()
    last_nic: bool = True
    peers: tuple[Nic, ...] = ()
    switch: AgentlessSwitch | None = None

    def number(self, parameter: str) -> float:
        """A numeric parameter's value; KeyError when the request is not resolved against the catalogue."""
        return float(self.parameters[parameter])

    def choice(self, parameter: str) -> str:
        """A choice parameter's value; KeyError as for `number`."""
        return str(self.parameters[parameter])

    @property
    def interface(self) -> Interface:
        """The NIC or port it is for; UsageError when it names none."""
        if self.nic is not None:
            return self.nic
        if self.port is None:
            raise UsageError(f"{self.fault} happens to a NIC, and none is named; say which, such as nic=0")
        return SwitchPort(self.host, self.port, self.netns)

    @property
    def process(self) -> tuple[str, int]:
        """The job and the rank it is for; UsageError when it names none."""
        if self.job is None or self.rank is None:
            raise UsageError(f"{self.fault} happens to a process; say whose, such as job='train', rank=2")
        return self.job, self.rank

    @property
    def where(self) -> str:
        """`h5/0`, `leaf0/up1`, `train:2`, `h5/gpu0` or `h5`: the target as people name it."""
        if self.nic is not None:
            return self.nic.name
        if self.port is not None:
            return f"{self.host}/{self.port}"
        if self.gpu is not None:
            return f"{self.host}/gpu{self.gpu}"
        return f"{self.job}:{self.rank}" if self.job is not None else self.host

    def expected_component(self, verdict: ExpectedVerdict | None) -> Component | None:
        """The component that a right diagnosis of this fault names; None where there should be none."""
        if verdict is None:
            return None
        side = self.choice("direction") if verdict.side == "direction" else verdict.side
        return Component(verdict.component, self.where, side if side != "both" else "")


class Lease(msgspec.Struct, frozen=True):
    """A fault on a host from its intent to `expires_s` (its clock), when the host puts things right by itself."""

    id: str
    request: FaultRequest
    started_s: float
    expires_s: float


class WitnessReport(msgspec.Struct, frozen=True):
    """What the witness saw: quantities by name, `before` the onset and `during` the fault.

    `observed_s` is the earliest evidence on the host's clock, None where nothing was `seen`. `plane` is what was looked
    at: `rdma` (packets that the NIC itself sends), `ip` (packets of the kernel), or `state` (settings and counters of
    the target, or the host itself).
    """

    seen: bool
    observed_s: float | None
    before: dict[str, float]
    during: dict[str, float]
    plane: str = "state"
