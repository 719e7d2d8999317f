"""First light: every fault that a NIC or port can have, tried once on one idle link, and what the tools there print.

One file results, without names and addresses of the fabric, that a user can send to c4bench's makers. What the
catalogue calls seen on hardware comes from such files and from nothing else.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Literal

import msgspec

from c4bench import __version__
from c4bench.decoding import json_in
from c4bench.errors import C4Error, InconclusiveError, UnhealthyError, UsageError
from c4bench.inject import catalogue
from c4bench.inject.controller import Injector
from c4bench.inject.first_plan import parameter_sets
from c4bench.inject.places import Place
from c4bench.inject.protocol import Planned
from c4bench.model.fabric import Nic
from c4bench.model.fault import OF_LAB, BlastRadius, FaultSpec, TargetKind, Value, WitnessReport
from c4bench.remote.protocol import Connection

_TOOL_S = 30.0
_MOST_CHARACTERS = 1 << 16
# What is read of a NIC and of the host around it; nothing of it changes anything.
_TOOLS = (
    ("uname", "-r"),
    ("ethtool", "--version"),
    ("ethtool", "{netdev}"),
    ("ethtool", "--json", "{netdev}"),
    ("ethtool", "-i", "{netdev}"),
    ("ethtool", "--show-fec", "{netdev}"),
    ("mlnx_qos", "-i", "{netdev}", "-a"),
    ("dcb", "-j", "pfc", "show", "dev", "{netdev}"),
    ("dcb", "-N", "-j", "app", "show", "dev", "{netdev}"),
    ("tc", "-json", "qdisc", "show", "dev", "{netdev}"),
    ("devlink", "-j", "dev", "eswitch", "show", "pci/{pci}"),
    ("devlink", "-j", "port", "show"),
    ("rdma", "-j", "link", "show"),
    ("ibv_devinfo", "-d", "{device}"),
    ("mlxlink", "-d", "{pci}"),
    ("mstlink", "-d", "{pci}"),
    ("mlxreg", "-d", "{pci}", "--yes", "--reg_name", "ROCE_ACCL", "--get"),
    ("mlxconfig", "-d", "{pci}", "query", "KEEP_ETH_LINK_UP_P1", "ROCE_CC_PRIO_MASK_P1"),
    ("grep", "-rs", "", "/sys/class/net/{netdev}/ecn/roce_np/enable", "/sys/class/net/{netdev}/ecn/roce_rp/enable"),
    ("cat", "/sys/class/infiniband/{device}/tc/1/traffic_class"),
)
# Read before the faults and after them: what grows is what the faults have done.
_COUNTERS = (
    ("ethtool", "-S", "{netdev}"),
    ("rdma", "-j", "statistic", "show", "link", "{device}"),
)


class Tried(msgspec.Struct, frozen=True):
    """One fault: the kind of hardware, its commands and parameters, what the witness saw, and how it went.

    `seen`: it took effect and is gone without a residue. `unseen`: it was applied, and its witness saw nothing.
    `impossible`: nothing was applied. `failed`: anything else; `why` says what.
    """

    fault: str
    outcome: Literal["seen", "unseen", "impossible", "failed"]
    why: str = ""
    hardware: str = ""
    parameters: dict[str, Value] = {}
    apply: tuple[str, ...] = ()
    revert: tuple[str, ...] = ()
    witness: WitnessReport | None = None


class Printed(msgspec.Struct, frozen=True):
    """What a command printed, and its exit code."""

    command: str
    code: int
    output: str


class FirstLight(msgspec.Struct, frozen=True):
    """The file. `places` are the targets under the names that the file has for them.

    `knobs` are a NIC's path controls, each with why it does not work there, "" where it does.
    """

    c4bench: str
    places: tuple[str, ...]
    tried: dict[str, tuple[Tried, ...]]
    printed: dict[str, tuple[Printed, ...]]
    knobs: dict[str, dict[str, str]] = {}


def faults_for(place: Place) -> list[FaultSpec]:
    """The faults of the catalogue that happen to a NIC or to a switch's port. Raises UsageError for other targets."""
    if place.nic is None and place.port is None:
        raise UsageError(
            f"{place.host.name} is a whole host or switch; name a NIC or a port, such as h5/0 or leaf0/up1"
        )
    kind = TargetKind.PORT if place.nic is None else TargetKind.NIC
    return [spec for _, spec in sorted(catalogue.load().specs.items()) if spec.target is kind]


def try_fault(injector: Injector, spec: FaultSpec, place: Place, lease_s: float, *, last_nic: bool) -> Tried:
    """Apply the fault with the first parameters that its driver takes, and end it as soon as its witness has looked."""
    try:
        planned, parameters = _planned(injector, spec, place)
    except C4Error as error:
        return Tried(spec.name, "impossible", str(error))
    tried = Tried(spec.name, "failed", "", planned.hardware, parameters, planned.apply, planned.revert)
    change = msgspec.structs.replace
    limits = {"lease_s": lease_s, "last_nic": last_nic, "within": BlastRadius.LINK}
    try:
        with injector.apply_at(spec.name, place, parameters, **limits) as applied:  # type: ignore[arg-type]
            tried = change(tried, witness=applied.witness)
    except UsageError as error:  # by the rules that keep a host safe
        return change(tried, outcome="impossible", why=str(error))
    except InconclusiveError as error:
        return change(tried, outcome="unseen", why=str(error))
    except UnhealthyError as error:
        return change(tried, why=str(error))
    return change(tried, outcome="seen")


def _planned(injector: Injector, spec: FaultSpec, place: Place) -> tuple[Planned, dict[str, Value]]:
    """The first plan that the driver makes, and its parameters. Raises C4Error with the driver's first reason."""
    errors: list[C4Error] = []
    for parameters in parameter_sets(spec):
        try:
            return injector.plan(spec.name, place, parameters), parameters
        except C4Error as error:
            errors.append(error)
    raise errors[0]


def read_tools(connection: Connection, nic: Nic, tools: Iterable[Sequence[str]]) -> Iterator[Printed]:
    """What the tools of the NIC's host print; one that is missing says so by its exit code."""
    names = {"netdev": nic.netdev, "device": nic.device, "pci": _pci_address(connection, nic)}
    for words in tools:
        if any(f"{{{name}}}" in word for word in words for name, value in names.items() if not value):
            continue
        argv = [word.format(**names) for word in words]
        done = connection.run(["timeout", f"{_TOOL_S:g}", *argv], timeout_s=2 * _TOOL_S, check=False)
        text = (done.stdout + done.stderr).decode(errors="replace")
        yield Printed(" ".join(argv), done.code, text[:_MOST_CHARACTERS])


def _pci_address(connection: Connection, nic: Nic) -> str:
    """The PCI function of a NIC; "" for one without."""
    if not nic.device:
        return ""
    asked = ["readlink", "-f", f"/sys/class/infiniband/{nic.device}/device"]
    done = connection.run(asked, timeout_s=_TOOL_S, check=False)
    name = done.stdout.decode(errors="replace").strip().rpartition("/")[2]
    return name if _PCI.fullmatch(name) else ""


def read_knobs(connection: Connection, python: str, nic: Nic) -> dict[str, str]:
    """The NIC's path controls, tried on QPs without a peer: why each does not work, "" where it does."""
    if not nic.device:
        return {}
    console = [python, "-m", "c4bench.verbs.endpoint_console", msgspec.json.encode(nic).decode()]
    try:
        with closing(connection.start(console)) as session:
            for command in ("open", "knobs"):
                session.write_line(f'{{"do": "{command}"}}')
                answer = json_in(session.read_line(_TOOL_S), _Answer)
                if answer.error:
                    return {"": answer.error}
    except C4Error as error:
        return {"": str(error)}
    return {str(name): str(why) for name, why in answer.answer.items()}


class _Answer(msgspec.Struct, frozen=True):
    """An answer of the endpoint's console; its `answer` has other forms than that of `knobs`."""

    answer: Any = None
    error: str = ""


# What names a device or a place for others: serial numbers, keys, GUIDs, and addresses of every kind.
_NAMED_VALUES = re.compile(
    r"(?im)((?:serial[ _-]?(?:number|num|no)?|\bsn|part[ _-]?number|vpd|guid|key|password|token)\"?\s*[:=|]\s*)\S.*$"
)
_ADDRESSES = re.compile(
    r"(?i)\b(?:[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5,19}"  # MAC addresses, of InfiniBand too
    r"|(?:\d{1,3}\.){3}\d{1,3}"
    r"|(?:[0-9a-f]{4}:){3}[0-9a-f]{4}"  # a GUID
    r"|0x[0-9a-f]{16})\b"
    r"|(?i:(?<![0-9a-f:.])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{1,4}(?![0-9a-f:.]))"
)
_PCI = re.compile(r"(?i)[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?")


class Scrubber:
    """Replaces what belongs to a fabric alone: names of its hosts, addresses, GUIDs, serial numbers and keys.

    Equal texts have equal replacements, `host1`, `address2`, so that the file still says what belongs together.
    """

    def __init__(self, names: Sequence[str]) -> None:
        ordered = sorted(set(names), key=lambda name: (-len(name), name))
        self._hosts = {name: f"host{number}" for number, name in enumerate(sorted(set(names)), 1)}
        alternatives = "|".join(map(re.escape, ordered))
        self._names = re.compile(rf"(?<![\w.-])(?:{alternatives})(?![\w-])") if ordered else None
        self._addresses: dict[str, str] = {}

    def text(self, text: str) -> str:
        """The text without them."""
        text = _NAMED_VALUES.sub(lambda match: f"{match[1]}(left out)", text)
        text = _ADDRESSES.sub(self._address, text)
        return text if self._names is None else self._names.sub(lambda match: self._hosts[match[0]], text)

    def value(self, value: Any) -> Any:  # noqa: ANN401  (JSON)
        """The same for every string in it, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.value(item) for key, item in value.items()}
        return [self.value(item) for item in value] if isinstance(value, list | tuple) else value

    def _address(self, match: re.Match[str]) -> str:
        if _PCI.fullmatch(match[0]):
            return match[0]
        return self._addresses.setdefault(match[0].lower(), f"address{len(self._addresses) + 1}")


def first_light(
    injector: Injector,
    places: Sequence[tuple[str, Place]],
    connect: Callable[[str], Connection],
    python: Callable[[str], str],
    names: Sequence[str],
    lease_s: float,
    report: Callable[[str], None],
    *,
    last_nic: bool,
) -> FirstLight:
    """Try everything at each place, which has a name; `report` gets a line for each fault.

    `python` is the one that has c4bench on a host. `names` are those of all hosts and switches; the result has none.
    """
    tried: dict[str, tuple[Tried, ...]] = {}
    printed: dict[str, tuple[Printed, ...]] = {}
    knobs: dict[str, dict[str, str]] = {}
    for name, place in places:
        specs, nic, host = faults_for(place), place.nic, place.host.name
        if nic is not None:
            with connect(host) as connection:
                printed[name] = tuple(read_tools(connection, nic, (*_TOOLS, *_COUNTERS)))
                knobs[name] = read_knobs(connection, python(host), nic)
        tried[name] = tuple(_try_all(injector, name, place, specs, lease_s, report, last_nic=last_nic))
        if nic is not None:
            with connect(host) as connection:
                printed[name] += tuple(read_tools(connection, nic, _COUNTERS))
    whole = FirstLight(__version__, tuple(name for name, _ in places), tried, printed, knobs)
    scrubbed = Scrubber(names).value(msgspec.to_builtins(whole))
    return msgspec.convert(scrubbed, FirstLight)


def _try_all(
    injector: Injector,
    name: str,
    place: Place,
    specs: Iterable[FaultSpec],
    lease_s: float,
    report: Callable[[str], None],
    *,
    last_nic: bool,
) -> Iterator[Tried]:
    for spec in specs:
        began_s = time.monotonic()
        found = try_fault(injector, spec, place, lease_s, last_nic=last_nic)
        took = f"{time.monotonic() - began_s:.1f} s"
        report(f"{name}: {spec.name}: {found.outcome} ({found.why or took})")
        yield found


def seen_in(file: FirstLight) -> set[tuple[str, str]]:
    """Faults and kinds of hardware, beyond the lab's own, on which the file says that they were seen."""
    every = (one for found in file.tried.values() for one in found)
    return {(one.fault, one.hardware) for one in every if one.outcome == "seen" and one.hardware not in {"", *OF_LAB}}
