"""Inventories that only Ansible can read come to the same hosts as one in YAML."""

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
from night_cases import at_night

from c4bench.errors import UsageError
from c4bench.inventory import load
from c4bench.inventory.review import review
from c4bench.resources import resource

INI = """\
[racks]
n[1:2] ansible_host=10.0.0.1 c4='{"disruptive": true, "nics": [{"netdev": "eth2", "rate": "100gbit"}]}'
[racks:vars]
ansible_user=ops
ansible_port=2222
[switches]
leaf0 ansible_user=admin
"""
YAML = """\
racks:
  vars: {ansible_user: ops, ansible_port: 2222}
  hosts:
    n[1:2]: {ansible_host: 10.0.0.1, c4: {disruptive: true, nics: [{netdev: eth2, rate: 100gbit}]}}
switches: {hosts: {leaf0: {ansible_user: admin}}}
"""
SCRIPT = """\
#!/bin/sh
cat <<END
{"racks": {"hosts": ["n1", "n2"], "vars": {"ansible_user": "ops", "ansible_port": 2222}},
 "switches": {"hosts": ["leaf0"]},
 "_meta": {"hostvars": {
  "n1": {"ansible_host": "10.0.0.1", "c4": {"disruptive": true, "nics": [{"netdev": "eth2", "rate": "100gbit"}]}},
  "n2": {"ansible_host": "10.0.0.1", "c4": {"disruptive": true, "nics": [{"netdev": "eth2", "rate": "100gbit"}]}},
  "leaf0": {"ansible_user": "admin"}}}}
END
"""
PLUGIN = """\
plugin: ansible.builtin.generator
hosts: {name: "{{ rack }}", parents: [{name: racks}]}
layers: {rack: [n1, n2]}
"""


def write(path, text, mode=0o644):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def meaning(inventory):
    """What an inventory says, whatever file said it."""
    return inventory.hosts, inventory.switches, inventory.access, inventory.groups["racks"], inventory.facts


@pytest.fixture
def correct(tmp_path):
    return meaning(load(write(tmp_path / "wanted.yml", YAML)))


@pytest.mark.parametrize("kind", ["folder", "script", *at_night("ini")])
def test_any_inventory_of_ansible_means_what_the_same_in_yaml_means(tmp_path, correct, kind):
    """An INI file, a folder with host_vars, and a script come to the same hosts, switches, access and facts."""
    if kind == "ini":
        path = write(tmp_path / "hosts", INI)
    elif kind == "script":
        path = write(tmp_path / "hosts.sh", SCRIPT, 0o755)
    else:
        path = write(tmp_path / "lab" / "hosts.ini", INI).parent
    assert meaning(load(path)) == correct


def test_an_inventory_plugin_is_asked(tmp_path):
    """A YAML file that names a plugin contains no hosts: Ansible runs the plugin."""
    inventory = load(write(tmp_path / "racks.yml", PLUGIN))
    assert [host.name for host in inventory.hosts] == ["n1", "n2"]


def test_discovered_host_vars_are_read(tmp_path):
    """What discovery writes as host_vars/HOST.yml beside any inventory is that host's `c4`."""
    facts = "c4: {management: eth0, nics: [{device: mlx5_0, netdev: eth2, address: 10.2.0.1}]}"
    write(tmp_path / "host_vars" / "n1.yml", facts)
    for name, text in {"hosts": "n1\n", "hosts.yml": "all: {hosts: {n1: }}"}.items():
        inventory = load(write(tmp_path / name, text))
        assert inventory.hosts[0].nics[0].device == "mlx5_0"
        assert inventory.facts["n1"].management == "eth0"


@pytest.mark.parametrize(
    ("name", "text", "mode", "words"),
    [
        ("hosts.ini", "[racks\nn1\n", 0o644, ["hosts.ini", "Ansible cannot read it"]),
        ("hosts.ini", "n1 c4='{nics: ['\n", 0o644, ["n1.c4", "not valid JSON or YAML"]),
        ("hosts.ini", "n1 c4='{gpus: [{speed: 1}]}'\n", 0o644, ["gpus[0].speed", "unknown key", "model"]),
        *at_night(
            ("hosts.sh", "#!/bin/sh\nexit 1\n", 0o755, ["hosts.sh", "Ansible cannot read it"]),
            ("hosts.ini", "n1 c4='{nics: 3}'\n", 0o644, ["n1.c4.nics", "expected `array`"]),
            ("hosts.ini", "[racks]\n", 0o644, ["no hosts"]),
        ),
    ],
)
def test_what_ansible_cannot_read_or_we_cannot_use_is_refused_in_one_line(tmp_path, name, text, mode, words):
    """The file, the key where there is one, and Ansible's own word."""
    with pytest.raises(UsageError) as error:
        load(write(tmp_path / name, text, mode))
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_what_cannot_be_true_together_is_found(tmp_path):
    """One address or switch port of two NICs, the management interface as a NIC, a GPU beside no NIC."""
    text = """\
all:
  hosts:
    a: {c4: {nics: [{device: d, netdev: e, address: 10.2.0.1, rate: 1gbit, leaf: leaf0/p1}], management: eth0}}
    b:
      c4:
        management: e1
        nics: [{address: 10.2.0.1, leaf: leaf0/p1, netdev: e1}]
        gpus: [{nic: 0}, {nic: 4}]
    c: {}
"""
    found = review(load(write(tmp_path / "hosts.yml", text)))
    assert found.problems == (
        "address 10.2.0.1 is given to a nics[0] and b nics[0]; give it to one only",
        "switch port leaf0/p1 is given to a nics[0] and b nics[0]; give it to one only",
        "b: e1 is both its management interface and a NIC; remove it from c4.nics",
        "b: gpus[1].nic is 4, and it has no NIC of that index; correct c4.gpus",
    )
    assert found.unsaid == {"b": ("nics[0].device", "nics[0].rate"), "c": ("nics", "management")}


def test_the_checked_in_schema_is_what_inventories_are_held_against():
    """An editor or a linter with the schema accepts what we accept, and refuses what we refuse."""
    schema = json.loads(Path(resource("reports", "schema", "facts.schema.json")).read_text())
    jsonschema.validate({"nics": [{"netdev": "eth2", "leaf": "leaf0/1"}], "gpus": [{"pci": "0000:17:00.0"}]}, schema)
    for wrong in ({"nic": []}, {"nics": [{"index": -1}]}, {"disruptive": "yes"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_a_review_of_256_hosts_says_what_they_lack_once(tmp_path):
    """Hosts that lack the same are named together, whatever their number."""
    found = review(load(write(tmp_path / "hosts.yml", "all: {hosts: {'n[001:256]': {}}}")))
    assert found.hosts == len(found.unsaid) == 256
    assert set(found.unsaid.values()) == {("nics", "management")}
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("topology.conf", "not an inventory, but Slurm topology"),
        ("exporter.ini", "not an inventory: its hosts would be called 'listen_address=198.51.100.15'"),
        *at_night(
            ("service.ini", "Expected key=value host variable assignment, got: link-monitor"),
            ("hosts_undefined_child.ini", "Section [gpu_all:children] includes undefined group 'gpu_h200'"),
        ),
    ],
)
def test_what_is_no_inventory_is_refused_with_the_reason(name, words):
    """Files that Ansible would take for hosts are refused, and of those that it refuses its own reason is given."""
    path = Path(__file__).parents[2] / "evidence_fixtures/cases/15-not-an-inventory" / name
    with pytest.raises(UsageError) as refused:
        load(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert words in str(refused.value)
