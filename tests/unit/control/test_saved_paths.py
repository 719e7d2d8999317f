"""Paths learnt before."""

import pytest

from c4bench.c4p.path_knowledge import PathKnowledge
from c4bench.cli.main import main
from c4bench.control.saved_paths import SavedPaths
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


def test_a_fabric_is_known_again(inventory, tmp_path):
    """The same NICs find what was saved, others nothing; what is saved later adds to it."""
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
    with pytest.raises(UsageError, match="learn them anew"):
        saved.load()


@pytest.fixture
def paths(inventory, tmp_path, capsys):
    """`c4bench paths`: its exit code and what it said."""

    def run(*words):
        code = main(["paths", *words, "--hosts", str(inventory), "--keep", str(tmp_path / "kept")])
        return code, *capsys.readouterr()

    return run


def test_saved_paths_are_printed_with_their_age_and_held_against_the_inventory(paths, inventory, tmp_path):
    """Without asking any host: every way, how old it is, and the NIC that is not on the leaf it should be on."""
    code, _, said = paths("a", "d", "--saved")
    assert code == 3
    assert "leave out --saved to learn it" in said
    SavedPaths(tmp_path / "kept", load(inventory).hosts).save(learnt())
    code, found, said = paths("a", "d", "--saved")
    assert code == 0, said
    assert "a/0 > d/0: 1 ways over 1 source ports" in found
    assert " s old" in found
    assert "b/0" not in found
    assert "d/0 is cabled to leaf1, declared is leaf0; check the cable or the inventory" in said
