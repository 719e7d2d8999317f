"""Reading Ansible inventories in YAML."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.errors import UsageError
from c4bench.inventory import Access, load, select
from c4bench.inventory.document import Document
from c4bench.inventory.groups import expand, resolve
from c4bench.inventory.review import review
from c4bench.model.fabric import Inside, Nic

RACKS = """\
all:
  vars:
    ansible_user: ops
    ansible_ssh_common_args: -F none -o "UserKnownHostsFile=/etc/known hosts"
  children:
    racks:
      vars: {ansible_port: 2222, c4: {disruptive: true}}
      children:
        rack1:
          hosts: {h1: {ansible_host: 10.0.0.1}, h2: {ansible_port: 22}}
        rack2:
          vars: {ansible_user: root}
          hosts:
            h3:
              ansible_connection: local
              c4:
                python: /usr/bin/python3
                nics:
                - {device: mlx5_0, netdev: ens1, address: 10.1.0.3, rate: 100gbit}
                - {index: 4, device: mlx5_1, netdev: ens2, address: 10.2.0.3, rate: 100gbit, plane: 1}
                - {index: 5, device: mlx5_bond_0, netdev: bond0, address: 10.3.0.3, rate: 400gbit, bond: [ens3, ens4]}
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "hosts.yml"
        path.write_text(dedent(text))
        return path

    return write


def refusal(path):
    with pytest.raises(UsageError) as error:
        load(path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_hosts_inherit_variables_as_ansible_resolves_them(write):
    """A host's own variable wins over its group's, a group's over its parent's, and all of them over `all`."""
    inventory = load(write(RACKS))
    ssh = ("-F", "none", "-o", "UserKnownHostsFile=/etc/known hosts")
    assert inventory.access["h1"] == Access("10.0.0.1", "ops", 2222, ssh_arguments=ssh)
    assert inventory.access["h2"] == Access("h2", "ops", 22, ssh_arguments=ssh)
    assert inventory.access["h3"] == Access(
        "h3", "root", 2222, ssh_arguments=ssh, python="/usr/bin/python3", connection="local"
    )


def test_the_c4_variable_becomes_hosts_and_nics(write):
    """NICs carry their host, an index (the place in the list unless given) and a rate in bit/s."""
    h1, _, h3 = load(write(RACKS)).hosts
    assert h1.disruptive
    assert h1.nics == ()
    assert not h3.disruptive  # the host's own `c4` replaces the group's whole
    assert h3.nics == (
        Nic("h3", 0, "mlx5_0", "ens1", "10.1.0.3", 1e11),
        Nic("h3", 4, "mlx5_1", "ens2", "10.2.0.3", 1e11, plane=1),
        Nic("h3", 5, "mlx5_bond_0", "bond0", "10.3.0.3", 4e11, bond=("ens3", "ens4")),
    )


def test_the_digest_is_of_the_file(write):
    """The digest in a run's provenance is what sha256sum prints for the inventory."""
    path = write(RACKS)
    assert load(path).digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_deeper_group_wins_wherever_it_stands_in_the_file(write):
    """Depth decides, not the order of the text."""
    inventory = load(
        write(
            """\
            inner: {vars: {ansible_user: deep}}
            outer: {vars: {ansible_user: shallow}, children: {inner: {hosts: {a: }}}}
            """
        )
    )
    assert inventory.access["a"].user == "deep"


def test_host_ranges_are_expanded():
    """Ranges keep their zeros, count letters, take steps and multiply."""
    assert list(expand("n[08:10].lab")) == ["n08.lab", "n09.lab", "n10.lab"]
    assert list(expand("[a:e:2]-[1:2]")) == ["a-1", "a-2", "c-1", "c-2", "e-1", "e-2"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["the inventory has no hosts"]),
        ("all: {children: {rack: {}}}", ["the inventory has no hosts"]),
        ("all:\n  hosts:\n    a: {\n", [":4:", "not valid YAML"]),
        ("all:\n  hosts:\n    a:\n    a:\n", [":4:", "'a' is given twice"]),
        ("all:\n  ? [hosts]\n  : {}\n", [":2:", "a key is not a single word"]),
        ("all:\n  host: {a: }\n", [":2:", "all.host", "hosts, children, vars"]),
        ("- hosts: all\n", ["expected a mapping, got a list"]),
        ("all: {hosts: [a, b]}", [":1:", "all.hosts", "got a list"]),
        ("a:\n  children:\n    b:\n      children:\n        a:\n", [":5:", "a group inside itself"]),
        ("all: {hosts: {a: {ansible_port: ssh}}}", ["all.hosts.a.ansible_port", "'ssh' is not a port"]),
        ("all: {hosts: {a: {ansible_host: '{{ ip }}'}}}", ["ansible_host", "templates are not evaluated"]),
        ("all: {hosts: {a: {ansible_connection: winrm}}}", ["'winrm' is not supported"]),
        ('all: {hosts: {a: {ansible_ssh_common_args: "-o \'x"}}}', ["correct the quotes"]),
        ("all:\n  hosts:\n    a:\n      c4:\n        disruptve: true\n", [":5:", "a.c4.disruptve", "unknown key"]),
        ("all:\n  vars:\n    c4:\n      python: 3\n  hosts: {a: }\n", [":4:", "all.vars.c4.python", "`str`", "host a"]),
        (
            "all:\n  hosts:\n    a:\n      c4:\n        nics:\n        - plane: 0\n        - plane: x\n",
            [":7:", "c4.nics[1].plane", "`int`"],
        ),
        ("all: {hosts: {a: {c4: {nics: [{rate: fast}]}}}}", ["c4.nics[0].rate", "10gbit", "host a"]),
        (
            "all: {hosts: {a: {c4: {nics: [{device: m0}, {device: m0}]}}}}",
            ["duplicate NIC device m0", "nics[1].device"],
        ),
        ("all: {hosts: {a: {c4: {inside: {rate: fast}}}}}", ["c4.inside", "10gbit", "host a"]),
        ("all: {hosts: {a: {c4: {nics: [{index: 1}, {}]}}}}", ["duplicate NIC index 1", "nics[1].index"]),
        ("all: {hosts: {a: {c4: {gpus: [{index: 1}, {}]}}}}", ["duplicate GPU index 1", "gpus[1]"]),
        ("all: {hosts: {a: {c4: {nics: [{bond: [e1]}]}}}}", ["nics[0].bond: e1: name two or more interfaces"]),
        ("all: {hosts: {a: {c4: {nics: [{bond: [e1, e1]}]}}}}", ["nics[0].bond: e1, e1: name two or more interfaces"]),
        ("all: {hosts: {a: {c4: {nics: [{speed: 1}]}}}}", ["nics[0].speed", "unknown key", "netdev"]),
        ("all: {hosts: {a: {c4: true}}}", ["a.c4", "`object`"]),
    ],
)
def test_a_wrong_inventory_is_refused_in_one_line_that_says_where(write, text, words):
    """An error has file, line and key path, the problem, and the fix; nothing is guessed."""
    path = write(text)
    message = refusal(path)
    assert message.startswith(str(path))
    for word in words:
        assert word in message


def test_files_beside_the_inventory_are_read_as_ansible_reads_them(write, tmp_path):
    """group_vars win over the groups in the inventory, a host's own words over both, and host_vars over all."""
    for name, text in {
        "group_vars/all.yml": "ansible_user: all_file",
        "group_vars/rack1/ssh.yaml": "ansible_port: 3333",
        "group_vars/rack1/vault.yml": "$ANSIBLE_VAULT;1.1;AES256\n6162",
        "host_vars/h3": "{ansible_connection: ssh, c4: {python: /usr/bin/python3.13}}",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    access = load(write(RACKS)).access
    assert [access[name].user for name in ("h1", "h3")] == ["all_file", "all_file"]
    assert [access[name].port for name in ("h1", "h2")] == [3333, 22]
    assert (access["h3"].connection, access["h3"].python) == ("ssh", "/usr/bin/python3.13")
    (tmp_path / "host_vars/h3").write_text("\nc4: {nics: 3}")
    assert f"{tmp_path}/host_vars/h3:2: c4.nics: expected `array`" in refusal(write(RACKS))


def test_ansible_itself_resolves_the_same(write, tmp_path):
    """Every variable of every host is what ansible-inventory says, through depth, names, ranges and files beside."""
    path = write(
        """\
        all: {vars: {v: all, w: all}, hosts: {lone: {v: lone}}}
        b: {vars: {v: b, w: b, x: b}, hosts: {"n[01:03]": }, children: {deep: }}
        a: {vars: {v: a, y: a}, hosts: {n01: {y: own}}, children: {deep: {hosts: {n03: {z: own}}, vars: {w: deep}}}}
        """
    )
    for name, text in {"group_vars/all": "x: file", "group_vars/a.yml": "w: file", "host_vars/n02.yml": "v: h"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    ansible = Path(sys.executable).with_name("ansible-inventory")
    said = subprocess.run([ansible, "-i", path, "--list"], capture_output=True, check=True, cwd=tmp_path).stdout
    correct = json.loads(said)["_meta"]["hostvars"]
    resolved = resolve(Document(path))
    found = {host: {key: variable.value for key, variable in own.items()} for host, own in resolved.hosts.items()}
    assert found == correct


def test_a_missing_file_is_refused(tmp_path):
    """The message names the path and what to give instead."""
    assert "no such file" in refusal(tmp_path / "none.yml")
    assert "no such file" in refusal(tmp_path / "none")


def test_secrets_of_ansible_are_no_obstacle(write):
    """A vaulted variable is passed over: it is Ansible's."""
    text = "all: {vars: {secret: !vault 'x', raw: !unsafe '{{'}, hosts: {a: }}"
    assert [host.name for host in load(write(text)).hosts] == ["a"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("all", ["h1", "h2", "h3"]),
        ("h3,h1", ["h1", "h3"]),
        ("rack1", ["h1", "h2"]),
        ("h[12]", ["h1", "h2"]),
        ("rack*", ["h1", "h2", "h3"]),
        ("racks,!h2", ["h1", "h3"]),
        ("!rack1", ["h3"]),
        ("racks, &rack2", ["h3"]),
    ],
)
def test_patterns_name_hosts_groups_and_globs(write, pattern, names):
    """What is selected comes in the order of the inventory, each host once."""
    assert [host.name for host in select(load(write(RACKS)), pattern)] == names


@pytest.mark.parametrize("pattern", ["", "h9", "h1,rack9", "rack1,&rack2", "all,!all"])
def test_a_pattern_that_matches_nothing_is_refused(write, pattern):
    """Nothing matched is never a success; the message lists the hosts there are."""
    with pytest.raises(UsageError, match="h1, h2, h3"):
        select(load(write(RACKS)), pattern)


@given(st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), min_size=1, unique=True))
def test_every_host_of_a_flat_inventory_is_found_once_and_in_order(tmp_path_factory, names):
    """Whatever hosts are called, loading keeps each of them, and `all` selects exactly them."""
    path = tmp_path_factory.mktemp("inventory") / "hosts.yml"
    path.write_text("all:\n  hosts:\n" + "".join(f"    '{name}': {{}}\n" for name in names))
    inventory = load(path)
    assert [host.name for host in select(inventory, "all")] == names
    assert list(inventory.access) == names


def test_class_is_that_of_the_nic_or_else_of_the_host(write):
    """A NIC's own DSCP and service level come before its host's; without either both are 0."""
    text = """\
all:
  hosts:
    a: {c4: {dscp: 26, service_level: 3, nics: [{}, {dscp: 0, service_level: 5}]}}
    b: {c4: {nics: [{}]}}
"""
    nics = [nic for host in load(write(text)).hosts for nic in host.nics]
    assert [(nic.dscp, nic.service_level) for nic in nics] == [(26, 3), (0, 5), (0, 0)]
    assert [nic.traffic_class for nic in nics] == [104, 0, 0]


@pytest.mark.parametrize(
    ("facts", "key"),
    [
        ("dscp: 64", "a.c4.dscp"),
        ("dscp: -1", "a.c4.dscp"),
        ("dscp: AF31", "a.c4.dscp"),
        ("service_level: 16", "a.c4.service_level"),
        ("nics: [{dscp: 106}]", "a.c4.nics[0].dscp"),
        ("nics: [{service_level: 1.5}]", "a.c4.nics[0].service_level"),
        ("traffic_class: 106", "a.c4.traffic_class"),
    ],
)
def test_class_that_does_not_exist_is_refused(write, facts, key):
    """A DSCP has 6 bits and a service level 4; the error is one line with file, line, key and host."""
    path = write(f"all:\n  hosts:\n    a:\n      c4: {{{facts}}}")
    with pytest.raises(UsageError, match=rf"{re.escape(key)}: .*\(host a\)$") as error:
        load(path)
    assert str(error.value).startswith(f"{path}:4: ")


def test_nics_that_talk_to_each_other_must_have_one_class(write):
    """NICs of one plane with different DSCPs or service levels are a contradiction; those of two planes are not."""
    text = "all: {hosts: {a: {c4: {nics: [{dscp: 26, plane: %d}]}}, b: {c4: {nics: [{}]}}}}"
    assert review(load(write(text % 0))).problems == (
        "NICs of plane 0 differ in `dscp` and `service_level`: 26 and 0 on a/0, 0 and 0 on b/0; give them the same",
    )
    assert review(load(write(text % 1))).problems == ()


def test_a_discovered_file_that_replaces_what_the_inventory_says_is_named(write, tmp_path):
    """A file in host_vars that replaces what the inventory says of a host is a problem with file and line."""
    path = write("all: {hosts: {a: {c4: {disruptive: true}}, b: {c4: {disruptive: true}}}}")
    (tmp_path / "host_vars/a").mkdir(parents=True)
    found = tmp_path / "host_vars/a/c4bench.yml"
    found.write_text("# found\nc4: {disruptive: false}")
    (tmp_path / "host_vars/b.yml").write_text("c4: {disruptive: true}")
    assert review(load(path)).problems == (
        f"{found}:2: c4: this replaces the whole c4 that {path} gives a; keep one of the two",
    )


def test_gpus_are_read_with_their_nearest_nics(tmp_path):
    """A host's GPUs, by number, have the index of their NIC, -1 where none is stated; `inside` has rate and delay."""
    path = tmp_path / "hosts.yml"
    gpus = "gpus: [{index: 1, nic: 4}, {index: 0}], inside: {rate: 900gbit, delay: 2us}"
    path.write_text(f"all: {{hosts: {{a: {{c4: {{nics: [{{index: 4}}], {gpus}}}}}, b: {{}}}}}}")
    a, b = load(path).hosts
    assert (a.gpus, a.inside) == ((-1, 4), Inside(9e11, 2e-6))
    assert (b.gpus, b.inside) == ((), Inside())
