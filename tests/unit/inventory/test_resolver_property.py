"""The reader of YAML inventories against Ansible's own, on inventories that nobody has written by hand."""

import shutil
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from property_examples import examples

from c4bench.inventory import ansible, groups
from c4bench.inventory.document import Document

BESIDE = Path(sys.executable).with_name("ansible-inventory")
HOSTS, GROUPS, VARIABLES = ("h1", "h2", "h3", "h4"), ("g1", "g2", "g3", "g4"), ("x", "y", "z")
VALUES = st.dictionaries(st.sampled_from(VARIABLES), st.integers(0, 9), max_size=3)
MEMBERS = st.dictionaries(st.sampled_from(HOSTS), st.one_of(st.none(), VALUES), max_size=3)
EXAMPLES = examples(3, 8)  # each asks Ansible, which takes a second


@st.composite
def inventories(draw):
    """Groups below `all`, each with hosts, variables and groups of a higher number; a group may have two parents."""
    known = {}
    for number in reversed(range(len(GROUPS))):
        later = GROUPS[number + 1 :]
        below = draw(st.lists(st.sampled_from(later), unique=True, max_size=2)) if later else []
        group = {"hosts": draw(MEMBERS), "vars": draw(VALUES)}
        known[GROUPS[number]] = group | {"children": {name: known[name] for name in below}}
    top = draw(st.lists(st.sampled_from(GROUPS), unique=True, min_size=1))
    return {
        "all": {"hosts": draw(MEMBERS) | {"h0": None}, "vars": draw(VALUES), "children": {n: known[n] for n in top}}
    }


@pytest.mark.skipif(not BESIDE.exists() and not shutil.which("ansible-inventory"), reason="no-ansible: not installed")
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(content=inventories())
def test_hosts_groups_and_variables_are_ansibles(tmp_path, content):
    """Every host has the variables, and every group the hosts, that `ansible-inventory` says."""
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    ours, theirs = groups.resolve(Document(path)), ansible.resolve(ansible.listed(path))
    assert variables(ours) == variables(theirs)
    named = {name for name in theirs.groups if name in (*GROUPS, "all")}
    assert {name: set(ours.groups.get(name, ())) for name in named} == {n: set(theirs.groups[n]) for n in named}


def variables(resolved):
    """By host: the values of its variables."""
    return {
        host: {key: variable.value for key, variable in known.items() if key in VARIABLES}
        for host, known in resolved.hosts.items()
    }
