"""Saved paths: kept by fabric, and printed by `c4bench paths --saved`."""

import pytest

from c4bench.c4p.knowledge.path_knowledge import PathKnowledge
from c4bench.cli.main import main
from c4bench.control.store import SavedPaths
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
    assert "d/0 is cabled to leaf1, declared is leaf0; check the cable or the inventory" in errors
