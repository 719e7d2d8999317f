import json

import jsonschema
import pytest
import yaml
from fakes import NIC, nic_request, rank_request

from c4bench.errors import UsageError
from c4bench.inject import catalogue
from c4bench.inject.drivers import NIC_DRIVERS, PROCESS_DRIVERS
from c4bench.inject.witness import WITNESSES
from c4bench.model.diagnosis import Component
from c4bench.model.fault import FaultRequest, TargetKind
from c4bench.resources import resource

CATALOGUE = catalogue.load()


@pytest.mark.parametrize("name", sorted(CATALOGUE.specs))
def test_every_fault_is_whole(name):
    """A fault names drivers and a witness that exist, and its defaults are within its own bounds."""
    spec = CATALOGUE.specs[name]
    drivers = NIC_DRIVERS if spec.target is TargetKind.NIC else PROCESS_DRIVERS
    assert set(spec.drivers.values()) <= set(drivers)
    assert spec.witness in WITNESSES
    assert spec.verdict.component == ("nic" if spec.target is TargetKind.NIC else "rank")
    request = nic_request(name) if spec.target is TargetKind.NIC else rank_request(name)
    _, resolved = CATALOGUE.resolve(request)
    assert resolved.parameters.keys() == spec.parameters.keys()


def test_the_schema_file_is_current():
    """`faults/schema.json` is what the code says; `python -m c4bench.inject schema` writes it anew."""
    assert json.loads(resource("faults", "schema.json").read_text()) == json.loads(json.dumps(catalogue.schema()))


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
        (nic_request("nic.rat"), "near it: nic.rate"),
        (nic_request("quux"), "known: nic.blackhole, nic.down"),
        (
            nic_request("nic.rate", fraction=1.5),
            "fraction is 1.5; it must be at least 0.001 of the rate and at most 0.95",
        ),
        (nic_request("nic.rate", fraction="quick"), "fraction is 'quick'"),
        (nic_request("nic.rate", fraction=float("nan")), "fraction is nan"),
        (nic_request("nic.rate", direction="up"), "direction is 'up'; it must be tx or rx"),
        (nic_request("nic.rate", speed=1), "no parameter 'speed'; it has: fraction, direction"),
        (FaultRequest("nic.down", "h5"), "none is named"),
        (FaultRequest("process.kill", "h5", job="train"), "say whose"),
        (FaultRequest("process.kill", "h5", NIC, "train", 2), "not to NIC h5/0"),
        (FaultRequest("nic.down", "h5", NIC, "train", 2), "not to a rank of job train"),
        (FaultRequest("nic.down", "h5", NIC, lease_s=-1.0), "a lease of -1 s"),
        (FaultRequest("nic.down", "h5", NIC, lease_s=1e9), "a lease of 1e\\+09 s"),
        (FaultRequest("nic.down", "h5", NIC, lease_s=1.0, witness_s=2.0), "no part of the lease"),
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
    assert request.blamed(spec.verdict) == blamed
