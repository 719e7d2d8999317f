"""`c4bench fault`: what is printed, and what is refused in one line before anything is touched."""

import json
import signal
import socket
import sys

import jsonschema
import pytest
from night_cases import at_night

from c4bench.cli.main import main
from c4bench.inject import catalogue
from c4bench.resources import resource

# Plans look at an interface and change nothing; the loopback is never a target.
NETDEV = next((name for _, name in socket.if_nameindex() if name != "lo"), "")
pytestmark = pytest.mark.skipif(not NETDEV, reason="no-interface: this machine has only its loopback")
INVENTORY = f"""\
all:
  vars: {{ansible_connection: local}}
  hosts:
    h0: {{c4: {{disruptive: true, python: {sys.executable}, nics: [{{netdev: {NETDEV}, rate: 10gbit}}]}}}}
    h1: {{c4: {{python: {sys.executable}, nics: [{{netdev: {NETDEV}}}]}}}}
  children:
    switches:
      hosts:
        leaf0: {{c4: {{disruptive: true, python: {sys.executable}}}}}
        leaf1: {{c4: {{python: {sys.executable}}}}}
"""


@pytest.fixture
def hosts(tmp_path):
    """An inventory of this machine, four times."""
    path = tmp_path / "hosts.yml"
    path.write_text(INVENTORY)
    return f"--hosts={path}"


def test_the_list_has_every_fault_on_a_line(capsys):
    """A fault's name and what it is, for people; the whole entry as JSON."""
    assert main(["fault", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(catalogue.load().specs)
    assert any(line.startswith("nic.speed") and line.endswith("(not in the lab)") for line in lines)
    assert main(["fault", "list", "--json"]) == 0
    assert {json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()} == set(catalogue.load().specs)


def test_show_tells_what_never_ran_on_its_hardware(capsys):
    """The description of a fault says on which hardware its driver was never seen to work, and where there is none."""
    assert main(["fault", "show", "nic.speed"]) == 0
    assert "not yet seen on hardware: mlx5_core, ib" in capsys.readouterr().out
    assert main(["fault", "show", "nic.loss"]) == 0
    shown = capsys.readouterr().out
    assert "not yet seen" not in shown
    assert "not on mlx5_core: no tool of the NIC drops RDMA packets; use link.loss" in shown


def test_a_plan_is_the_exact_commands(hosts, tmp_path, capsys):
    """Both what would be done and what would undo it, and nothing of it is done."""
    history = tmp_path / "history.jsonl"
    assert main(["fault", "apply", "nic.down", "h0/0", "--plan", "--json", hosts, f"--history={history}"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["apply"] == [f"ip link set dev {NETDEV} down"]
    assert planned["revert"][0] == f"ip link set dev {NETDEV} up"
    assert not history.exists()
    jsonschema.validate(planned, json.loads(resource("faults", "output.schema.json").read_text()))


@pytest.mark.parametrize(
    "words",
    [
        ["nic.rate", "-o", "fraction=0.5", "h0/0", "direction=tx", "lease=5s"],
        *at_night(
            ["nic.rate", "h0/0", "-o", "fraction=0.5", "lease=5s", "--plan", "direction=tx"],
            ["nic.rate", "h0/0", "--lease", "5s", "fraction=0.5", "--plan", "direction=tx"],
        ),
    ],
)
def test_words_and_options_come_in_any_order(hosts, capsys, words):
    """Targets, parameters and the lease may stand anywhere among the options."""
    assert main(["fault", "apply", *words, "--json", hosts, "--plan"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert main(["fault", "apply", "nic.rate", "h0/0", "fraction=0.5", "direction=tx", "--json", hosts, "--plan"]) == 0
    assert planned == json.loads(capsys.readouterr().out)


def test_a_compound_is_planned_part_by_part(hosts, capsys):
    """Every part's commands, each for its own target."""
    assert main(["fault", "apply", "compound.second_in_recovery", "h0/0", "h1/0", "--plan", "--json", hosts]) == 0
    plans = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [plan["apply"] for plan in plans] == [[f"ip link set dev {NETDEV} down"]] * 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nic.dwon", "h0/0"], "did you mean nic.down?"),
        (["nic.delay", "h0/0", "delay_s=1kg"], "whose unit is wrong; use one for s"),
        (["nic.rate", "h0/0", "fraction=7"], "at most 0.95 of the rate"),
        (["nic.down", "h7/0"], "has no host or switch 'h7'; did you mean h"),
        (["nic.down", "h0/3"], "h0 has no NIC 3; its NICs: h0/0"),
        (["nic.down", "h0/x"], "is no target; write HOST/NIC, SWITCH/PORT"),
        (["nic.down", "h0/0", "h1/0"], "happens to 1 target, 2 given"),
        (["compound.two_nics", "h0/0"], "happens to 2 targets, 1 given"),
        (["compound.two_nics", "h0/0", "--plan"], "happens to 2 targets, 1 given"),
        (["link.down", "h0/0"], "happens to a switch's port"),
        (["nic.down", "h1/0"], "not marked `disruptive: true`"),
        (["link.down", "leaf1/up0"], "leaf1 is not marked `disruptive: true`"),
        (["nic.down", "h0/0", "--lease=5kg"], "unit is wrong"),
        (["nic.down", "h0/0", "lease=5kg"], "unit is wrong"),
        (["nic.down", "h0/0", "--lease=2h"], "unit is wrong"),
        (["switch.misrouted", "leaf0/up0"], "affects the fabric, which is wider than the host you allow"),
    ],
)
def test_wrong_words_are_refused_in_one_line(hosts, tmp_path, capsys, words, complaint):
    """Exit code 2, one line that says what would do, no history of anything, and Ctrl-C works as before."""
    history = tmp_path / "history.jsonl"
    assert main(["fault", "apply", *words, hosts, f"--history={history}"]) == 2
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    expected = capsys.readouterr()
    assert complaint in expected.err
    assert len(expected.err.splitlines()) == 1
    assert expected.out == ""
    assert not history.exists()
