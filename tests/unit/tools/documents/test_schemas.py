import json

import jsonschema
import pytest

from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.record import Ledger, RunDirectory
from c4bench.record.encoding import encode
from c4bench.record.provenance import collect
from c4bench.resources import resource
from tools.documents.schemas import schemas, write_schemas


def valid(name, document):
    schema = json.loads(schemas()[f"{name}.schema.json"])
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document)


@pytest.mark.parametrize("name", sorted(schemas()))
def test_checked_in_schemas_are_current(name):
    """The schema files of the repository are what the types give; `write_schemas` updates them."""
    assert resource("reports", "schema", name).read_bytes() == schemas()[name]


def test_schemas_are_written_where_asked(tmp_path):
    """Every schema is written to the folder named."""
    write_schemas(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == schemas()


@pytest.mark.parametrize("value", [0.5, float("nan")])
def test_recorded_lines_follow_the_schema(tmp_path, value):
    """A recorded line is valid, also one that has no number; one without an outcome is not."""
    run = RunDirectory.create(tmp_path, "r")
    Ledger(run, "s").measure("x", value, "1", at_least=0.1, case="a", hosts=8)
    line = json.loads((run.path / "measurements.jsonl").read_bytes())
    valid("measurement", line)
    del line["outcome"]
    with pytest.raises(jsonschema.ValidationError):
        valid("measurement", line)


def test_run_and_diagnosis_follow_their_schemas():
    """What is written to run.json and what C4D says are valid."""
    run = collect(name="r", started_at="", command=["x"], seed=1, backend="b", topology="t", clock="virtual")
    valid("run", json.loads(encode(run)))
    found = Diagnosis("j", Syndrome.COMMUNICATION_SLOW, Component("nic", "h1/0", "tx"), 1, 2, 3, 0.9, ("row",), "x")
    valid("diagnosis", json.loads(encode(found)))


JOB = {"name": "two-sites", "program": "diloco", "parameters": {"sites": [[0, 2], [1, 3]], "steps": 100}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"nmae": "x"},
        {"ranks": -1},
        {"parameters": {"sites": [[0], [1]], "steps": 100, "fragment": 3}},
        {"parameters": {"steps": 100}},
        {"program": "learning"},
    ],
)
def test_a_job_follows_its_schema_with_the_parameters_of_its_program(wrong):
    """An editor accepts a job, and marks a key that there is not and parameters that its program does not have."""
    valid("job", JOB)
    valid("job", {"name": "x", "parameters": {"steps": 3}})
    with pytest.raises(jsonschema.ValidationError):
        valid("job", JOB | wrong)
    with pytest.raises(jsonschema.ValidationError):
        valid("job", {"name": "x", "parameters": {"sites": [[0], [1]]}})
