"""First light: each fault is tried once, and what is written names nothing of the fabric."""

import msgspec
import pytest

from c4bench.errors import InconclusiveError, UnhealthyError, UsageError
from c4bench.inject import catalogue, first_light
from c4bench.inject.first_light import FirstLight, Printed, Scrubber, Tried
from c4bench.inject.places import Place
from c4bench.inject.protocol import Applied, Planned
from c4bench.model.fabric import Host, Nic
from c4bench.model.fault import WitnessReport
from c4bench.remote import Completed
from c4bench.resources import resource
from tools.seen import enter

NIC = Nic("gpu01", 0, "mlx5_0", "eth2", "10.2.0.1", 1e11)
PLACE = Place(Host("gpu01", "10.1.0.1", (NIC,), disruptive=True), nic=NIC)
SPECS = catalogue.load().specs
SEEN = WitnessReport(True, 1.0, {"running": 1.0}, {"running": 0.0}, "state")
APPLIED = Applied("id", "nic.down", None, None, 1.0, 0.0, 31.0, SEEN)


class Scripted:
    """An injector that plans with some parameters only, and applies or raises an error."""

    def __init__(self, outcome=SEEN, refuses=lambda _: None):
        self.outcome, self.refuses, self.applied = outcome, refuses, []

    def plan(self, name, _place, parameters):
        if why := self.refuses(parameters):
            raise UnhealthyError(why)
        return Planned((f"do {name}",), (f"undo {name}",), hardware="mlx5_core")

    def apply_at(self, name, _place, parameters, **_limits):
        self.applied.append((name, parameters))
        return self

    def __enter__(self):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return msgspec.structs.replace(APPLIED, witness=self.outcome)

    def __exit__(self, *_):
        return False


def tried(injector, fault="nic.down"):
    return first_light.try_fault(injector, SPECS[fault], PLACE, 30.0, last_nic=False)


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (SEEN, "seen"),
        (InconclusiveError("not seen"), "unseen"),
        (UsageError("the last working NIC"), "impossible"),
        (UnhealthyError("left a residue"), "failed"),
    ],
)
def test_an_outcome_says_how_it_went(outcome, word):
    """Whatever happens is written, with the commands; only what was seen and left nothing counts as seen."""
    found = tried(Scripted(outcome))
    assert (found.outcome, found.apply, found.hardware) == (word, ("do nic.down",), "mlx5_core")
    assert found.why == ("" if outcome is SEEN else str(outcome))


def test_what_cannot_be_planned_is_not_applied():
    """Each set of parameters is planned; the driver's first reason is kept."""
    injector = Scripted(refuses=lambda parameters: f"{parameters['speed']} is not slower")
    assert tried(injector, "nic.speed").why == "25G is not slower"
    assert injector.applied == []
    injector = Scripted(refuses=lambda parameters: "" if parameters["speed"] == "10G" else "no")
    assert tried(injector, "nic.speed").parameters == {"speed": "10G"}
    assert injector.applied == [("nic.speed", {"speed": "10G"})]


def test_a_whole_host_is_no_link():
    """Only NICs and ports are tried: a mistake must not take a host away."""
    assert {spec.name for spec in first_light.faults_for(PLACE)} == {n for n in SPECS if n.startswith("nic.")}
    with pytest.raises(UsageError, match="gpu01 is a whole host or switch; name a NIC or a port"):
        first_light.faults_for(Place(PLACE.host))


SECRETS = """\
bus-info: 0000:17:00.1
Serial Number : MT2233X01234
node_guid:   b8ce:f603:00aa:bbcc
"address":"b8:ce:f6:aa:bb:cc", inet 10.2.0.1/24, fe80::bace:f6ff:feaa:bbcc
gpu01 port to gpu010 at gpu01:22, password: hunter2
"""


def test_nothing_of_the_fabric_is_written():
    """Names, addresses, GUIDs and serial numbers are replaced, equal ones alike; settings and PCI addresses stay."""
    text = Scrubber(["gpu01", "gpu010"]).text(SECRETS)
    for secret in ("MT2233", "b8ce", "b8:ce", "10.2.0.1", "fe80", "gpu01", "hunter2"):
        assert secret not in text, text
    assert "bus-info: 0000:17:00.1" in text
    assert "host1 port to host2 at host1:22" in text
    assert text.count("address") == 4


class Shell:
    """A host that has no tools but ethtool, whose counters grow, readlink and the endpoint's console."""

    knobs = ('{"answer": {"remote": {}}}', '{"answer": {"flow_label": "", "mlx5.lag_port": "gpu01 has no bond"}}')

    def __init__(self):
        self.readings = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def run(self, argv, **_):
        if argv[0] == "readlink":
            return Completed(0, b"/sys/devices/pci0000:16/0000:17:00.0\n", b"")
        self.readings += argv[2:4] == ["ethtool", "-S"]
        printed = {"ethtool": f"rx_discards_phy: {self.readings} at 10.2.0.1", "mlxlink": " ".join(argv[2:])}
        text = printed.get(argv[2], "")
        return Completed(0 if text else 127, text.encode(), b"")

    def start(self, argv):
        assert argv[:3] == ["/opt/python", "-m", "c4bench.verbs.endpoint_console"]
        self.answers, self.written = list(self.knobs), []
        return self

    def write_line(self, line):
        self.written.append(line)

    def read_line(self, _):
        return self.answers.pop(0)

    def close(self):
        pass


def whole_file(shell, lines):
    return first_light.first_light(
        *(Scripted(), [("gpu01/0", PLACE)], lambda _: shell, lambda _: "/opt/python", ["gpu01"], 30.0, lines.append),
        last_nic=False,
    )


def test_the_file_has_all_faults_tools_counters_and_knobs():
    """One line a fault is reported; counters are read before and after; the file reads back, and has no names."""
    lines, shell = [], Shell()
    file = whole_file(shell, lines)
    assert len(lines) == len(file.tried["host1/0"]) == len(first_light.faults_for(PLACE))
    printed = file.printed["host1/0"]
    assert printed[1].output == "rx_discards_phy: 0 at address1"
    counted = [one.output for one in printed if one.command == "ethtool -S eth2"]
    assert counted == ["rx_discards_phy: 1 at address1", "rx_discards_phy: 2 at address1"]
    assert Printed("mlxlink -d 0000:17:00.0", 0, "mlxlink -d 0000:17:00.0") in printed
    assert shell.written == ['{"do": "open"}', '{"do": "knobs"}']
    assert file.knobs == {"host1/0": {"flow_label": "", "mlx5.lag_port": "host1 has no bond"}}
    assert msgspec.json.decode(msgspec.json.encode(file), type=FirstLight) == file


def test_a_nic_that_cannot_be_opened_has_the_reason_as_its_only_knob():
    """The console's error is kept, and nothing more is asked."""
    shell = Shell()
    shell.knobs = ('{"error": "mlx5_0: opening it failed"}',)
    assert whole_file(shell, []).knobs == {"host1/0": {"": "mlx5_0: opening it failed"}}


def test_only_such_files_fill_the_catalogue(tmp_path):
    """What was seen on hardware that has a driver is entered once; the lab's own kinds and failures are not."""
    faults = tmp_path / "faults"
    faults.mkdir()
    for name in ("nic.down", "nic.loss", "nic.gid"):
        source = resource("faults", f"{name}.yml")
        (faults / f"{name}.yml").write_text(source.read_text())
    found = (
        Tried("nic.down", "seen", hardware="mlx5_core"),
        Tried("nic.gid", "unseen", hardware="mlx5_core"),
        Tried("nic.loss", "seen", hardware="rxe"),
        Tried("nic.loss", "seen", hardware="mlx5_core"),
    )
    path = tmp_path / "first-light.json"
    path.write_bytes(msgspec.json.encode(FirstLight("0.1.0", ("host1/0",), {"host1/0": found}, {})))
    assert enter(faults, [path]) == {"nic.down": ("mlx5_core",)}
    assert catalogue.load(faults).specs["nic.down"].seen == ("mlx5_core",)
    assert enter(faults, [path]) == {}
    path.write_text("{}")
    with pytest.raises(UsageError, match="is no file of `c4bench first-light`"):
        enter(faults, [path])
