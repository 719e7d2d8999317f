"""`c4bench utilisation` prints the model's figures, and refuses input that means nothing."""

import json

import pytest

from c4bench.cli.main import main
from c4bench.cost.utilisation import Method


def output(capsys, *arguments):
    assert main(["utilisation", *arguments]) == 0
    return capsys.readouterr().out


def test_the_table(capsys):
    """A row for each model and method, with the bandwidth of each utilisation."""
    lines = output(capsys).splitlines()
    assert len(lines) == 1 + 15
    assert lines[1].split() == ["1B", "data-parallel", "86.8", "152.6", "184.2", "222.3", "569.0"]
    (_, *rows) = output(capsys, "--model", "10B").splitlines()
    assert {row.split()[0] for row in rows} == {"10B"}


def test_json_for_other_programs(capsys):
    """Cells are in bit/s; beyond the grid null stands in."""
    cells = json.loads(output(capsys, "--model", "1B", "--json"))
    assert len(cells) == 25
    assert cells[0] == {
        "model": "1B",
        "method": "data-parallel",
        "utilisation": 0.5,
        "needed_bps": pytest.approx(84.5e9, rel=0.05),
        "grid_bps": pytest.approx(86.85e9, rel=1e-4),
    }
    own = json.loads(output(capsys, "--layers=2", "--parameters=7e9", "--step=1ms", "--json"))
    assert own[4]["grid_bps"] is None


def test_utilisation_at_a_bandwidth(capsys):
    """Each method's utilisation; more bits per parameter need more bandwidth."""
    shares = {point["method"]: point["utilisation"] for point in at(capsys, "2gbit")}
    assert list(shares) == [str(method) for method in Method]
    assert list(shares.values()) == sorted(shares.values())
    assert 0.95 <= shares["+ 4 bits"] < 0.99
    doubled = {point["method"]: point["utilisation"] for point in at(capsys, "2gbit", "--bits=26.64")}
    halved = {point["method"]: point["utilisation"] for point in at(capsys, "1gbit")}
    assert doubled == pytest.approx(halved)
    assert "+ 4 bits" in output(capsys, "--bandwidth=2gbit")


def at(capsys, rate, *more):
    return json.loads(output(capsys, "--model=1B", f"--bandwidth={rate}", "--json", *more))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--overlap=100",), "--overlap: 100 is not from 0 to below --period (100)"),
        (("--overlap=-1",), "--overlap: -1"),
        (("--period=0",), "--period: 0 is too few"),
        (("--fragment-layers=0",), "--fragment-layers: 0 is too few"),
        (("--bits=0",), "--bits: 0 bits"),
        (("--bits=nan",), "--bits: nan bits"),
        (("--layers=3",), "give all three"),
        (("--layers=0", "--parameters=1e9", "--step=1s"), "must be above 0"),
        (("--layers=3", "--parameters=inf", "--step=1s"), "must be above 0"),
        (("--layers=3", "--parameters=1e9", "--step=0s"), "must be above 0"),
        (("--layers=3", "--parameters=1e9", "--step=1"), "not a quantity"),
        (("--model=1B", "--layers=3"), "exclude each other"),
        (("--bandwidth=0gbit",), "nothing is sent at 0 bit/s"),
        (("--bandwidth=fast",), "not a quantity"),
    ],
)
def test_what_means_nothing_is_refused(arguments, words, capsys):
    """A wrong option is named in one line, with the usage exit code."""
    assert main(["utilisation", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
