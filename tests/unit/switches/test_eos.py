"""EOS: facts from its outputs, and changes, whose lines a shell runs with a small model of EOS's prompt."""

import copy
import json
import subprocess

import pytest
from switch_outputs import eos as outputs

from c4bench.errors import UnhealthyError
from c4bench.model.fault import FaultRequest
from c4bench.switches import eos
from c4bench.switches.facts import Ecn

CHANGES = {
    "down": {}, "speed": {"fraction": 0.3}, "blackhole": {"direction": "both"},
    "rate": {"direction": "tx", "fraction": 0.25}, "ecmp_out": {}, "mtu": {"mtu_bytes": 1500.0},
    "pfc_off": {"priority": 3.0}, "watchdog_off": {}, "ecn_off": {}, "ecn_thresholds": {"factor": 0.1},
}  # fmt: skip
UPLINK = "Ethernet33/1"


OPENS = ("interface ", "qos profile ", "ip access-list ", "router bgp ", "uc-tx-queue ")
ONE_VALUE = ("mtu ", "speed ", "service-profile ", "shape rate ")
# What stands for EOS's prompt: it keeps what is typed, and says what it is told to.
PROMPT = 'FastCli() { printf "%s|" "$@" >"$TYPED"; printf "%s" "$SAID"; }; '


class Switch:
    """A model of EOS's prompt: blocks of lines, `no`, `default`, `exit`, sessions with a timer and their abort."""

    def __init__(self, folder, running=None):
        self.folder = folder
        self.running = running or eos.lines_of(outputs()["configuration"])
        self.pending = None

    def run(self, *lines):
        """Run lines in a shell as the injector does; the exit code of the last."""
        for line in lines:
            self._shell(line, "")
            level, number, option, typed, _ = (self.folder / "typed").read_text().split("|")
            assert (level, number, option) == ("-p", "15", "-c")
            code = self._shell(line, self._type(typed))
        return code

    def _shell(self, line, said):
        env = {"TYPED": str(self.folder / "typed"), "SAID": said}
        return subprocess.run(["sh", "-c", PROMPT + line], env=env, capture_output=True, check=False).returncode

    def _type(self, text):
        """Type these lines; what EOS says to them."""
        first, *typed = text.splitlines()
        words = first.split()
        if words[-1] == "abort":
            if self.pending is None or self.pending[0] != words[2]:
                return f"% no such session {words[2]}"
            self.running, self.pending = self.pending[1], None
        elif words[:2] == ["configure", "session"]:
            if self.pending:
                return "% Invalid input"
            self.pending = words[2], copy.deepcopy(self.running), typed[-1].removeprefix("commit timer ")
            self._edit(typed[:-1])
        else:
            assert first == "configure", first
            self._edit(typed)
        return ""

    def _edit(self, typed):
        blocks = [self.running]
        for line in typed:
            if line == "exit":
                blocks.pop()
            elif line.startswith(OPENS):
                blocks = blocks if line.startswith("uc-tx-queue ") else [self.running]
                blocks.append(blocks[-1].setdefault(line, {}))
            elif line.startswith(("no qos profile", "no ip access-list")):
                self.running.pop(line[3:], None)
            elif line.startswith(("no shutdown", "no neighbor", "no ip access-group")):
                blocks[-1].pop(line[3:], None)
            elif line.startswith(("default ", "no shape rate")):
                drop(blocks[-1], line.partition(" ")[2])
            else:
                blocks[-1].pop(line.removeprefix("no "), None)
                drop(blocks[-1], line.split()[0] if line.startswith(ONE_VALUE) else line)
                blocks[-1][line] = {}

    @property
    def facts(self):
        return eos.parse(outputs(configuration=json.dumps({"cmds": nested(self.running)})))


def drop(block, start):
    for line in [line for line in block if line.removeprefix("no ").startswith(start)]:
        del block[line]


def nested(lines):
    return {line: {"cmds": nested(below)} if below else None for line, below in lines.items()}


def change(name, port=UPLINK, printed=None, lease_s=30.0, **parameters):
    request = FaultRequest("fault", "leaf0", port=port, parameters=parameters or CHANGES[name], lease_s=lease_s)
    return getattr(eos, name)(eos.parse(printed or outputs()), request)


def test_ports_profiles_and_neighbours_are_read():
    """State, speed, PFC, classes, marking, watchdog and neighbours, of ports with a QoS profile."""
    facts = eos.parse(outputs())
    assert facts.version == "4.32.1F"
    assert [(port.name, port.admin_up, port.oper_up) for port in facts.ports.values()] == [
        ("Ethernet1/1", True, True),
        ("Ethernet2/1", True, True),
        ("Ethernet3/1", False, False),
        (UPLINK, True, True),
    ]
    port, qos = facts.ports[UPLINK], facts.qos[UPLINK]
    assert (port.speed_bps, port.mtu_bytes, port.addresses) == (100e9, 9214, ("10.0.0.0/31",))
    assert (qos.trust, qos.pfc, qos.classes[26], qos.classes[0], qos.queues[3]) == ("dscp", (3,), 3, 1, 3)
    assert qos.ecn == {3: Ecn(150_000, 1_500_000, 20.0)}
    assert (qos.watchdog, facts.qos["Ethernet2/1"].watchdog) == (True, False)
    assert facts.qos["Ethernet3/1"].trust == "pcp"
    assert facts.neighbours == {UPLINK: "10.0.0.1"}
    assert facts.adaptive_routing is False


def test_the_configuration_as_text_says_the_same():
    """`show running-config` without `| json` is read by its indentation."""

    def text(lines, depth=0):
        return "".join(f"{'   ' * depth}{line}\n{text(below, depth + 1)}!\n" for line, below in lines.items())

    printed = outputs()["configuration"]
    assert eos.configured(text(eos.lines_of(printed))) == eos.configured(printed)


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_change_is_taken_back_whole(tmp_path, name):
    """By its own lines, also twice and without the session; a second change is refused while one is in force."""
    made, switch = change(name), Switch(tmp_path)
    before = eos.listing(switch.facts)
    assert switch.run(*made.apply) == 0
    assert eos.listing(switch.facts) != before
    assert switch.pending[2] == "00:00:30"
    assert switch.run(*change("mtu", "Ethernet1/1", mtu_bytes=1500.0).apply) != 0
    in_force = copy.deepcopy(switch.running)
    assert switch.run(*made.revert) == 0
    assert eos.listing(switch.facts) == before
    alone = Switch(tmp_path, in_force)
    assert alone.run(*made.revert * 2) == 0
    assert eos.listing(alone.facts) == before


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("pfc_off", lambda qos: qos.pfc == ()),
        ("watchdog_off", lambda qos: qos.watchdog is False),
        ("ecn_off", lambda qos: qos.ecn == {}),
        ("ecn_thresholds", lambda qos: qos.ecn == {3: Ecn(15_000, 150_000, 20.0)}),
    ],
)
def test_a_wrong_setting_is_of_its_port_alone(tmp_path, name, seen):
    """The port reads back as wrong, and the others, which have the same profile, as before."""
    switch = Switch(tmp_path)
    before = switch.facts
    switch.run(*change(name).apply)
    assert seen(switch.facts.qos[UPLINK])
    assert {port: qos for port, qos in switch.facts.qos.items() if port != UPLINK} == {
        port: qos for port, qos in before.qos.items() if port != UPLINK
    }


def test_the_timer_is_as_long_as_the_lease():
    """Rounded up to whole seconds, in hours, minutes and seconds; never shorter than EOS takes it."""
    assert "'commit timer 01:01:02'" in change("down", lease_s=3661.2).apply[0]
    assert "'commit timer 00:00:10'" in change("down", lease_s=0.5).apply[0]


@pytest.mark.parametrize(
    ("name", "port", "parameters", "words"),
    [
        ("down", "Ethernet3/1", {}, "shut down already"),
        ("down", "Ethernet9/1", {}, "has no port Ethernet9/1"),
        ("mtu", UPLINK, {"mtu_bytes": 9214.0}, "ask for a smaller one"),
        ("pfc_off", UPLINK, {"priority": 4.0}, "no PFC at priority 4"),
        ("watchdog_off", "Ethernet2/1", {}, "no PFC watchdog"),
        ("ecmp_out", "Ethernet1/1", {}, "no BGP neighbour"),
        ("ecn_off", "Ethernet3/1", {}, "marks no packets"),
        ("speed", UPLINK, {"fraction": 0.01}, "no speed so much lower"),
        ("rate", UPLINK, {"direction": "rx", "fraction": 0.5}, "direction tx"),
    ],
)
def test_what_cannot_be_done_is_refused(name, port, parameters, words):
    """Before anything is changed, with the reason and what to do."""
    with pytest.raises(UnhealthyError, match=words):
        change(name, port, **parameters)


@pytest.mark.parametrize(
    "changed",
    [{"configuration": "% Invalid input"}, {"configuration": "{}"}, {"interfaces": "{}"}, {"interfaces": "x"}],
)
def test_other_output_is_refused(changed):
    """What another system prints, or a user without rights sees, is no configuration and no list of ports."""
    with pytest.raises(UnhealthyError, match="`show "):
        eos.parse(outputs(**changed))
