import json

import jsonschema
import msgspec
import pytest
import yaml
from fakes import NIC, nic_request, rank_request

from c4bench.errors import UsageError
from c4bench.inject import catalogue, protocol
from c4bench.model.diagnosis import Component
from c4bench.model.fault import FaultRequest, Parameter, TargetKind
from c4bench.resources import resource

CATALOGUE = catalogue.load()


# The faults that the catalogue must have, in the words that a user would search for.
REQUIRED = {
    "nic": "down flap rate loss corrupt delay reorder blackhole gid mtu speed pcie",
    "link": "down blackhole rate loss ecmp_member acks_lost",
    "port": "down",
    "switch": "down misrouted",
    "host": "crash reboot clock_step memory disk_full management_cut data_cut",
    "process": "kill stop segfault slow stall uneven memory",
    "gpu": "clock power xid",
    "compound": "two_nics cascade second_in_recovery",
}


def test_nothing_that_was_asked_for_is_missing():
    """The catalogue has every fault of the list."""
    required = {f"{kind}.{name}" for kind, names in REQUIRED.items() for name in names.split()}
    assert required <= set(CATALOGUE.specs)


@pytest.mark.parametrize("name", sorted(name for name, spec in CATALOGUE.specs.items() if spec.parts))
def test_every_part_of_a_compound_is_a_fault(name):
    """A compound's parts exist, begin with the first target at once, and their parameters are in range."""
    spec = CATALOGUE.specs[name]
    assert spec.target is TargetKind.COMPOUND
    assert min(part.after_s for part in spec.parts) == 0.0
    assert {part.target for part in spec.parts} == set(range(len({part.target for part in spec.parts})))
    for part in spec.parts:
        catalogue.values(CATALOGUE.find(part.fault), part.parameters)
    with pytest.raises(UsageError, match="is several faults"):
        CATALOGUE.resolve(FaultRequest(name, "h5"))


def test_hardware_is_never_offered_what_does_nothing_to_it():
    """RDMA hardware sends past `tc`: a fault that needs it names no hardware but software NICs and plain Ethernet."""
    for name, spec in CATALOGUE.specs.items():
        if "tc with" in spec.capability and spec.target in {TargetKind.NIC, TargetKind.PORT}:
            by_tc = {kind for kind, driver in spec.drivers.items() if driver.startswith(("netdev", "forwarding"))}
            assert by_tc <= {"rxe", "ethernet"}, name


@pytest.mark.parametrize(
    ("file", "current"), [("schema.json", catalogue.schema), ("output.schema.json", protocol.schema)]
)
def test_the_schema_files_are_current(file, current):
    """The schema files match the code; `python -m c4bench.inject schema [output]` writes them again."""
    assert json.loads(resource("faults", file).read_text()) == json.loads(msgspec.json.encode(current()))


def test_the_schema_accepts_the_catalogue_and_refuses_a_misspelt_key():
    """An editor that knows the schema marks what the loader would refuse."""
    schema = catalogue.schema()
    for path in resource("faults").glob("*.yml"):
        jsonschema.validate(yaml.safe_load(path.read_text()), schema)
    wrong = yaml.safe_load(resource("faults", "nic.down.yml").read_text()) | {"blast": "all"}
    with pytest.raises(jsonschema.ValidationError, match="blast"):
        jsonschema.validate(wrong, schema)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("name: x\nsumary: y\n", "sumary"), ("name: [", "flow"), ("name: other\n", "summary")],
)
def test_a_damaged_file_is_named(tmp_path, text, complaint):
    """An unreadable fault is a usage error that names the file and what is wrong with it."""
    (tmp_path / "x.yml").write_text(text)
    with pytest.raises(UsageError, match=rf"x\.yml.*{complaint}|(?s:x\.yml.*{complaint})"):
        catalogue.load(tmp_path)


def test_a_file_must_bear_its_faults_name(tmp_path):
    """A copied file whose name was not changed inside is refused."""
    (tmp_path / "nic.dim.yml").write_text(resource("faults", "nic.down.yml").read_text())
    with pytest.raises(UsageError, match=r"name the file nic\.down\.yml"):
        catalogue.load(tmp_path)


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (nic_request("nic.rat"), "did you mean nic.rate?"),
        (nic_request("quux"), "there are .*nic.blackhole, nic.corrupt"),
        (
            nic_request("nic.rate", fraction=1.5),
            "fraction is 1.5; it must be at least 0.001 of the rate and at most 0.95",
        ),
        (nic_request("nic.rate", fraction="quick"), "fraction is 'quick'"),
        (nic_request("nic.rate", fraction=float("nan")), "fraction is nan"),
        (nic_request("nic.rate", direction="up"), "direction is 'up'; it must be tx or rx or both"),
        (nic_request("nic.delay", delay_s="1km"), "delay_s is '1km', whose unit is wrong; use one for s: s, ms"),
        (nic_request("nic.loss", probability="3 s"), "probability is '3 s', whose unit is wrong; .*: %"),
        (nic_request("nic.delay", delay_s="1min"), "delay_s is '1min'; it must be at least 0.0001 s and at most 0.1 s"),
        (nic_request("nic.rate", speed=1), "no parameter 'speed'; it has: fraction, direction"),
        (FaultRequest("nic.down", "h5"), "none is named"),
        (FaultRequest("process.kill", "h5", job="train"), "whose, such as rank 2"),
        (FaultRequest("process.kill", "h5", NIC, "train", 2), "not to a nic such as h5/0; leave it out"),
        (FaultRequest("nic.down", "h5", NIC, "train", 2), "not to a process such as h5/0"),
        (FaultRequest("nic.down", "h5", NIC, lease_s=-1.0), "a lease of -1 s"),
        (FaultRequest("nic.down", "h5", NIC, lease_s=0.0), "a lease of 0 s is not between 0 and"),
        (FaultRequest("nic.down", "h5", NIC, witness_s=0.0), "a witness_s of 0 s is not between 0 and the lease, 30 s"),
        (FaultRequest("nic.down", "h5", NIC, lease_s=2.0, witness_s=2.0), "a witness_s of 2 s"),
        (FaultRequest("nic.down", "h5", NIC, lease_s=1e9), "a lease of 1e\\+09 s"),
        (
            FaultRequest("nic.down", "h5", NIC, lease_s=1.0, witness_s=2.0),
            "witness_s of 2 s is not between 0 and the lease, 1 s",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(request_, complaint):
    """The complaint names the fault, the parameter with its unit, and what would do."""
    with pytest.raises(UsageError, match=complaint) as caught:
        CATALOGUE.resolve(request_)
    assert "\n" not in str(caught.value)


def test_defaults_are_filled_in_and_text_becomes_numbers():
    """A command line's text is as good as a number, and what is not said has its default."""
    _, request = CATALOGUE.resolve(nic_request("nic.rate", fraction="0.5"))
    assert request.parameters == {"fraction": 0.5, "direction": "tx"}


@pytest.mark.parametrize(
    ("fault", "given", "value"),
    [
        ("nic.delay", {"delay_s": "2ms"}, 2e-3),
        ("nic.delay", {"delay_s": "200 us"}, 2e-4),
        ("nic.rate", {"fraction": "25%"}, 0.25),
        ("nic.mtu", {"mtu_bytes": "2KiB"}, 2048),
        ("nic.flap", {"count": "3x"}, 3),
    ],
)
def test_values_come_in_the_units_people_write(fault, given, value):
    """What is written with a unit of the right kind is counted in the catalogue's."""
    _, request = CATALOGUE.resolve(nic_request(fault, **given))
    assert request.number(next(iter(given))) == pytest.approx(value)


@pytest.mark.parametrize(
    ("request_", "blamed"),
    [
        (nic_request("nic.rate", direction="rx"), Component("nic", "h5/0", "rx")),
        (nic_request("nic.down"), Component("nic", "h5/0")),
        (rank_request("process.stop"), Component("rank", "train:2")),
    ],
)
def test_the_expected_diagnosis_names_the_side_asked_for(request_, blamed):
    """A scenario compares C4D's finding with this component."""
    spec, request = CATALOGUE.resolve(request_)
    assert request.expected_component(spec.verdict) == blamed


@pytest.mark.parametrize(
    ("unit", "given", "value"),
    [
        ("s", "1min", 60.0),
        ("s", "7ns", 7e-9),
        ("s", "-.5s", -0.5),
        ("s", "+2e-3", 2e-3),
        ("bytes", "3B", 3.0),
        ("bytes", "3 bytes", 3.0),
        ("bytes", "2MiB", 2.0 * 2**20),
        ("bytes", "1.5GiB", 1.5 * 2**30),
        ("times", "4times", 4.0),
        ("W", "1.5kW", 1500.0),
        ("W", "300000mW", 300.0),
        ("MHz", "1.4GHz", 1400.0),
        ("MHz", "900MHz", 900.0),
        ("bit/s", "10gbit", 1e10),
        ("bit/s", "5mbit", 5e6),
        ("bit/s", "5kbit", 5e3),
        ("bit/s", "5bit", 5.0),
        ("of the rate", "12.5%", 0.125),
    ],
)
def test_every_unit_is_converted(unit, given, value):
    """Each unit that a parameter may be given in counts as many of the catalogue's."""
    parameter = Parameter("", "number", unit)
    assert catalogue.value("fault", "name", parameter, given) == pytest.approx(value)


@pytest.mark.parametrize(("number", "fits"), [(0.5, True), (2.0, True), (0.49, False), (2.01, False)])
def test_bounds_belong_to_the_range(number, fits):
    """The smallest and the largest value are allowed; the complaint says both with their unit."""
    parameter = Parameter("", "number", "s", minimum=0.5, maximum=2.0)
    assert catalogue.allowed(parameter) == "at least 0.5 s and at most 2 s"
    if fits:
        assert catalogue.value("fault", "name", parameter, number) == number
        return
    with pytest.raises(UsageError, match=r"name is .*; it must be at least 0.5 s and at most 2 s"):
        catalogue.value("fault", "name", parameter, number)


def test_what_has_no_default_must_be_given():
    """A default is used where nothing is said; a parameter without unit has none in the complaint."""
    assert catalogue.value("fault", "name", Parameter("", "number", default=3), None) == 3.0
    assert catalogue.value("fault", "name", Parameter("", "number"), -1e9) == -1e9
    with pytest.raises(UsageError, match=r"fault: name is not given; give at least 1$"):
        catalogue.value("fault", "name", Parameter("", "number", minimum=1), None)
    with pytest.raises(UsageError, match="whose unit is wrong; use one for : no unit"):
        catalogue.value("fault", "name", Parameter("", "number"), "3s")
