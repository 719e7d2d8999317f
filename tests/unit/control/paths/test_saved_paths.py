"""Saved paths: kept by fabric, and printed by `c4bench paths --saved`."""

import datetime
import json

import pytest

from c4bench.c4p.knowledge.path_knowledge import PathKnowledge
from c4bench.cli.main import main
from c4bench.control.state.store import SavedPaths
from c4bench.deploy import authority
from c4bench.errors import UsageError
from c4bench.inventory import load

INVENTORY = """\
all:
  hosts:
    a: {c4: {nics: [{address: 10.0.0.1, leaf: leaf0/p0}]}}
    b: {c4: {nics: [{address: 10.0.1.1, leaf: leaf0/p1}]}}
    c: {c4: {nics: [{address: 10.1.0.1, leaf: leaf1/p0}]}}
    d: {c4: {nics: [{address: 10.1.1.1, leaf: leaf0/p2}]}}
"""
LEAF = {"a/0": "a", "b/0": "a", "c/0": "c", "d/0": "c"}


@pytest.fixture
def inventory(tmp_path):
    path = tmp_path / "inventory.yml"
    path.write_text(INVENTORY)
    return path


def learnt(now_s=0.0):
    """Everything between all four: d hangs beside c, not where the inventory says."""
    address = {"a/0": "10.0.0.1", "b/0": "10.0.1.1", "c/0": "10.1.0.1", "d/0": "10.1.1.1"}
    traces = {}
    for source in address:
        for destination in set(address) - {source}:
            first = f"gate-{source}"
            spine = () if LEAF[source] == LEAF[destination] else (f"spine-{LEAF[source]}", f"down-{LEAF[destination]}")
            traces[source, destination, 49153] = (first, *spine, address[destination])
    known = PathKnowledge()
    known.learn(traces, now_s)
    return known


def test_paths_are_kept_by_fabric(inventory, tmp_path):
    """Saved paths are found by the same NICs only, and later ones are added to them."""
    hosts = load(inventory).hosts
    saved = SavedPaths(tmp_path / "kept", hosts)
    assert saved.load().pairs == ()
    saved.save(learnt())
    assert SavedPaths(tmp_path / "kept", hosts[::-1]).load().pairs == learnt().pairs
    assert SavedPaths(tmp_path / "kept", hosts[:2]).load().pairs == ()
    saved.save(learnt(7.0).between(["a/0", "b/0"]))
    assert saved.load().age_s(("a/0", "b/0"), 7.0) == 0.0
    assert saved.load().age_s(("a/0", "c/0"), 7.0) == 7.0
    saved.path.write_text("{")
    with pytest.raises(UsageError, match="learn them again"):
        saved.load()


@pytest.fixture
def paths(inventory, tmp_path, capsys):
    """Run `c4bench paths`; return its exit code and output."""

    def run(*words):
        code = main(["paths", *words, "--hosts", str(inventory), "--keep", str(tmp_path / "kept")])
        return code, *capsys.readouterr()

    return run


def test_saved_paths_are_printed_with_their_age_and_held_against_the_inventory(paths, inventory, tmp_path):
    """Saved paths are printed with their age without contacting hosts, and a NIC on another leaf is reported."""
    code, _, errors = paths("a", "d", "--saved")
    assert code == 3
    assert "leave out --saved to learn them" in errors
    SavedPaths(tmp_path / "kept", load(inventory).hosts).save(learnt())
    code, output, errors = paths("a", "d", "--saved")
    assert code == 0, errors
    assert "a/0 > d/0: 1 paths over 1 source ports" in output
    assert " s old" in output
    assert "b/0" not in output
    assert "d/0 by paths: cabled to leaf1, stated is leaf0; check the cables and the inventory" in errors
    code, output, _ = paths("a", "d", "--saved", "--json")
    document = json.loads(output)
    assert [(one["a"], one["b"], one["kind"], one["instead"]) for one in document["differences"]] == [
        ("d/0", "leaf0", "elsewhere", "leaf1")
    ]
    assert PathKnowledge.from_json(output.encode()).pairs == (("a/0", "d/0"), ("d/0", "a/0"))


def test_without_a_master_the_command_says_what_to_do(paths, tmp_path):
    """`c4bench paths` asks the master; without one, or with a wrong address, one line says why."""
    authority.establish(tmp_path / "trust", ["a"], datetime.datetime.now(datetime.UTC))
    code, _, errors = paths("a", "d", "--trust", str(tmp_path / "trust"), "--master", "127.0.0.1:9")
    assert code == 3
    assert "no master answers at 127.0.0.1:9" in errors
    assert "start one with c4bench master" in errors
    code, _, errors = paths("a", "d", "--listen", "7447")
    assert code == 2
    assert "--listen 7447: write ADDRESS:PORT" in errors


@pytest.mark.parametrize(
    ("document", "words", "problem"),
    [
        ("all: {hosts: {a: {}}}", [], "no host has NICs"),
        (INVENTORY, ["--background-every=-1"], "give seconds, or 0 for never"),
        (INVENTORY, ["--background-every=nan"], "give seconds, or 0 for never"),
    ],
)
def test_a_master_refuses_an_inventory_that_it_cannot_plan_for(document, words, problem, tmp_path, capsys):
    """`c4bench master --hosts` ends with one line before it listens."""
    (tmp_path / "inventory.yml").write_text(document)
    authority.establish(tmp_path / "trust", ["a"], datetime.datetime.now(datetime.UTC))
    options = [f"--hosts={tmp_path}/inventory.yml", f"--trust={tmp_path}/trust", f"--state={tmp_path}/state"]
    assert main(["master", *options, "--listen=127.0.0.1:0", *words]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
