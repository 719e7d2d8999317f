"""What discover.yml accepts of what a host says of itself: known keys with values of their forms, and nothing else."""

import importlib.util
import json
import re

import pytest
import yaml

from c4bench.resources import resource

pytest.importorskip("ansible")
_spec = importlib.util.spec_from_file_location("c4_discover", resource("playbooks", "action_plugins", "c4_discover.py"))
c4_discover = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(c4_discover)
LONG = "x" * 16


def read(text):
    """The file as a reader of `!unsafe` has it."""
    return yaml.safe_load(text.replace("!unsafe ", ""))["c4"]


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"nics": [], "gpus": []},
        {
            "nics": [
                {},
                {"device": "mlx5_bond_0", "netdev": "bond0.100", "address": "2001:db8::1", "rate": "14.0625gbit"},
            ]
        },
        {
            "nics": [
                {"leaf": "leaf0.dc1.example/Ethernet1/1"},
                {"leaf": "leaf1/ge-0/0/1"},
                {"leaf": "l/aa:bb:cc:dd:ee:ff"},
            ]
        },
        {"gpus": [{"index": 0, "model": "NVIDIA H100 80GB HBM3 (SXM)", "pci": "10000:e1:00.0", "nic": 3}]},
        *({"management": name} for name in ("eth0", "true", "123", "1e3", "null", "17:00.0", "2024-01-02", "0x10")),
    ],
)
def test_what_hosts_really_have_is_written_as_it_is(facts):
    """Texts stay texts, also those that YAML would take for something else, and no faults are permitted."""
    assert read(c4_discover.host_vars(json.dumps(facts))) == {"disruptive": False} | facts


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ('{"management": "{{ 1 }}"}', "c4.management"),
        ('{"management": "eth0\\n  disruptive: true"}', "c4.management"),
        ('{"management": "eth0\\u001b[31m"}', "c4.management"),
        ('{"management": "eth\\u0660"}', "c4.management"),
        (f'{{"management": "{LONG}"}}', "c4.management"),
        ('{"management": 1e400}', "c4.management"),
        ('{"nics": [{"device": "../../etc"}]}', "c4.nics[0].device"),
        ('{"nics": [{}, {"leaf": "leaf0/{% raw %}"}]}', "c4.nics[1].leaf"),
        ('{"nics": [{"leaf": "#jinja2: x/Ethernet0"}]}', "c4.nics[0].leaf"),
        ('{"nics": [{"address": "fe80::1%{{ 1 }}"}]}', "c4.nics[0].address"),
        ('{"nics": [{"address": 10}]}', "c4.nics[0].address"),
        ('{"gpus": [{"index": true}]}', "c4.gpus[0].index"),
        ('{"gpus": [{"index": -1}]}', "c4.gpus[0].index"),
        ('{"gpus": [{"model": ["x"]}]}', "c4.gpus[0].model"),
        ('{"disruptive": true}', "the key 'disruptive'"),
        ('{"nics": [{"disruptive": true}]}', "c4.nics[0] has the key 'disruptive'"),
        ('{"ansible_connection": "local"}', "the key 'ansible_connection'"),
        ('{"nics": {"0": {}}}', "c4.nics is no list"),
        (json.dumps({"nics": [{}] * 257}), "c4.nics is no list of up to 256"),
        ("[1]", "c4 is no mapping"),
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"gpus": [{"index": ' + "9" * 5000 + "}]}", "no JSON"),
        ('{"management": "' + "x" * (1 << 20) + '"}', "longer than"),
    ],
)
def test_anything_else_is_refused_with_its_key_in_one_printable_line(said, key):
    """Foreign keys, other types, templates, control characters and what is too long, too deep or too large."""
    with pytest.raises(ValueError, match=re.escape(key)) as error:
        c4_discover.host_vars(said)
    assert str(error.value).isascii()
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300
