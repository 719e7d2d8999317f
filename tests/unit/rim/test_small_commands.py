"""What an operator's commands print: nothing in force, every error at once, the choice that was meant, JSON."""

import json
import sys

import pytest

from c4bench.cli.lab import banner
from c4bench.cli.main import main
from c4bench.errors import UsageError
from c4bench.inventory import load
from c4bench.lab import topology_file
from c4bench.record import Ledger, RunDirectory, begin


def test_all_hosts_with_errors_are_named_at_once(tmp_path, capsys):
    """A line with file, line and key for each host; an error of a group's variable is said once."""
    path = tmp_path / "hosts.yml"
    path.write_text(
        "all:\n  hosts:\n    a: {ansible_port: 0}\n    b: {}\n    c: {c4: {dscp: 99}}\n  vars: {ansible_user: 7}\n"
    )
    assert main(["inventory", "check", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith(f"c4bench: {path}:") for line in lines)
    assert [line.removeprefix(f"c4bench: {path}:").partition(":")[0] for line in lines] == ["6", "5"]
    path.write_text("all:\n  hosts:\n    a: {ansible_port: 0}\n    b: {ansible_connection: pigeon}\n    c: {}\n")
    with pytest.raises(UsageError) as refused:
        load(path)
    assert str(refused.value).count("c4bench: ") == 1
    assert f"{path}:3: " in str(refused.value)
    assert f"{path}:4: " in str(refused.value)


def test_no_faults_in_force_is_said(tmp_path, capsys, monkeypatch):
    """An empty answer of all hosts is a sentence, and for other programs no line."""
    monkeypatch.setenv("C4BENCH_STATE", str(tmp_path / "state"))
    path = tmp_path / "hosts.yml"
    python = sys.executable
    path.write_text(f"all: {{hosts: {{here: {{ansible_connection: local, c4: {{python: {python}}}}}}}}}")
    assert main(["fault", "status", f"--hosts={path}"]) == 0
    assert capsys.readouterr().out == "no faults in force\n"
    assert main(["fault", "status", f"--hosts={path}", "--json"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["topolgy", "list"], "topology"), (["lab", "run", "--time=reel", "--", "true"], "real"), (["doktor"], "doctor")],
)
def test_the_choice_that_was_meant_is_named(capsys, words, meant):
    """A misspelt command or value is a usage error with the nearest one."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith(f"did you mean {meant}?")


def test_a_misspelt_topology_is_guessed():
    """The nearest name follows the list of names."""
    with pytest.raises(UsageError, match="did you mean clos-2x4"):
        topology_file.load("close-2x4")


def test_topologies_are_listed_shown_and_checked(tmp_path, capsys):
    """Every name; each NIC's cable; and what a file of one's own comes to, or its error with file and line."""
    assert main(["topology", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == topology_file.names()
    assert main(["topology", "show", "pair"]) == 0
    shown = capsys.readouterr().out
    assert "h1/0         10.1.0.1         leaf1/p0  10 Gbit/s\n" in shown
    assert f"file: {topology_file.DIRECTORY / 'pair.yml'}" in shown
    own = tmp_path / "own.yml"
    own.write_text((topology_file.DIRECTORY / "clos-2x4.yml").read_text())
    assert main(["topology", "check", str(own)]) == 0
    assert capsys.readouterr().out == (
        "ok  8 hosts, 8 NICs, 6 switches (2 in tier 1, 4 in tier 2), 8 links between switches\n"
    )
    own.write_text(own.read_text().replace("spine: {count: 4}", "spine: {count: 4000}"))
    assert main(["topology", "check", str(own)]) == 2
    assert f"{own}:4: spine.count: 4000; give 1 to 64" in capsys.readouterr().err


def test_the_shells_banner_names_hosts_and_a_switch():
    """The commands in it are for hosts and switches that the topology has."""
    lines = "\n".join(banner(topology_file.load("pair")))
    assert "hosts h0 to h1" in lines
    assert "ssh h0" in lines
    assert "ip -n leaf0 route" in lines


def test_a_verdict_is_printed_as_json(tmp_path, capsys):
    """`report --json` is one line for each run, with outcome, measurements and the page."""
    run = begin(tmp_path / "run", "run", command=("x",), seed=1, backend="", topology="", clock="virtual")
    Ledger(run, "a").measure("speed", 2.0, "1", at_least=1)
    assert main(["report", "--json", str(run.path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["run"], found["outcome"]) == (str(run.path), "pass")
    assert found["measurements"][0]["name"] == "speed"
    assert RunDirectory(run.path).started
