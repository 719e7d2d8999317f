"""NVUE: facts from its outputs, and changes, whose commands a small model of `nv` applies to the recorded tree."""

import copy
import json
import re
import shlex

import pytest
from switch_outputs import nvue as outputs

from c4bench.errors import UnhealthyError
from c4bench.model.fault import FaultRequest
from c4bench.switches import nvue
from c4bench.switches.facts import Ecn

# Words of NVUE's schema that a value follows.
LEAVES = {
    *("mtu", "state", "speed", "profile", "type", "protocol", "action", "dest-port", "port-max-rate", "enable", "tx"),
    *("rx", "trust", "cable-length", "ecn", "red", "min-threshold", "max-threshold", "probability", "shutdown"),
}
CHANGES = {
    "down": {}, "flap": {"period_s": 1.0, "duty": 0.5, "count": 3.0}, "speed": {"fraction": 0.3},
    "blackhole": {"direction": "both"}, "rate": {"direction": "tx", "fraction": 0.25}, "ecmp_out": {},
    "mtu": {"mtu_bytes": 1500.0}, "pfc_off": {"priority": 3.0}, "watchdog_off": {},
    "dscp_map": {"dscp": 26.0, "class": 0.0}, "ecn_off": {}, "ecn_thresholds": {"factor": 0.1}, "adaptive_routing": {},
}  # fmt: skip


class Nv:
    """The tree of settings of a switch, on which lines of `nv` act."""

    def __init__(self, text):
        self.tree = json.loads(text)[1]["set"]

    def run(self, line):
        """Apply each `nv set` and `nv unset` of a line; of alternatives the first is taken."""
        line = re.sub(r"\{ (.*?) \|\| .*?; \}", r"\1", line)
        detach, _, rest = line.partition("; ")
        assert detach == "nv config detach >/dev/null"
        *edits, apply = rest.split(" && ")
        assert apply == "nv config apply -y"
        for edit in edits:
            word, verb, *path = shlex.split(edit)
            assert word == "nv"
            {"set": self._set, "unset": self._unset}[verb](self._widened(path))

    def _widened(self, path):
        """Split the row of a range of interfaces when one of them is changed, as NVUE stores each by itself."""
        rows = self.tree["interface"]
        for key in list(rows) if path[0] == "interface" else ():
            names = nvue.names_of(key)
            if path[1] in names and len(names) > 1:
                row = rows.pop(key)
                for name in names:
                    rows[name] = merged(copy.deepcopy(row), rows.get(name, {}))
        return path

    def _set(self, path):
        scalar = path[-2] in LEAVES or (path[-2] == "switch-priority" and "dscp" in path)
        *keys, last = path[:-1] if scalar else path
        node = self.tree
        for key in keys:
            node = node.setdefault(key, {})
        if scalar:
            node[last] = int(path[-1]) if path[-1].isdecimal() else path[-1]
        else:
            node.setdefault(last, {})

    def _unset(self, path):
        nodes = [self.tree]
        for key in path[:-1]:
            nodes.append(nodes[-1].get(key, {}))
        nodes[-1].pop(path[-1], None)
        for node, key in reversed(list(zip(nodes, path[:-1], strict=False))):
            if node.get(key) == {}:
                del node[key]

    @property
    def text(self):
        return json.dumps([{"header": {}}, {"set": self.tree}])


def merged(one, other):
    for key, value in other.items():
        one[key] = merged(one.get(key, {}), value) if isinstance(value, dict) else value
    return one


def facts_of(text):
    return nvue.parse(outputs(configuration=text))


def change(name, port="swp51", printed=None, **parameters):
    request = FaultRequest("fault", "leaf0", port=port, parameters=parameters or CHANGES[name])
    return getattr(nvue, name)(nvue.parse(printed or outputs()), request)


def test_ports_and_profiles_are_read():
    """State, speed, PFC, classes, marking and watchdog, of ports that are set by ranges and one by one."""
    facts = nvue.parse(outputs())
    assert facts.version == "5.9.1"
    assert {name: (port.admin_up, port.oper_up) for name, port in facts.ports.items()} == {
        **dict.fromkeys(("swp1", "swp2", "swp3", "swp51", "swp52"), (True, True)),
        "swp4": (False, False),
    }
    port, qos = facts.ports["swp51"], facts.qos["swp51"]
    assert (port.speed_bps, port.mtu_bytes, port.addresses) == (100e9, 9216, ("10.0.0.0/31",))
    assert (qos.trust, qos.pfc, qos.classes[26], qos.queues[3], qos.watchdog) == ("dscp", (3,), 3, 3, True)
    assert qos.ecn == {3: Ecn(150000, 300000, 100.0)}
    assert not facts.qos["swp52"].watchdog
    assert facts.neighbours == {"swp51": "swp51", "swp52": "swp52"}


def test_the_mode_roce_stands_for_its_profiles():
    """`nv set qos roce` alone is PFC and marking at priority 3, and DSCP 26 there; mode lossy is without PFC."""
    tree = {"interface": {"swp1": {"type": "swp"}}, "qos": {"roce": {"enable": "on", "mode": "lossless"}}}
    text = json.dumps([{"header": {}}, {"set": tree}])
    qos = nvue.configured(text).qos["swp1"]
    assert (qos.trust, qos.pfc, qos.classes[26], qos.ecn[3]) == ("dscp", (3,), 3, Ecn(150000, 1500000, 100.0))
    assert nvue.configured(text.replace("lossless", "lossy")).qos["swp1"].pfc == ()
    assert nvue.configured(text.replace('"on"', '"off"')).qos["swp1"].trust == "pcp"


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_change_is_taken_back_whole(name):
    """After the lines of a change and those that take it back, every leaf is as it was; also after them twice."""
    made, nv = change(name), Nv(outputs()["configuration"])
    before = nvue.listing(nvue.parse(outputs()))
    for line in made.apply:
        nv.run(line)
    assert nvue.listing(facts_of(nv.text)) != before
    for line in made.revert * 2:
        nv.run(line)
    assert nvue.listing(facts_of(nv.text)) == before


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("pfc_off", lambda qos: qos.pfc == ()),
        ("watchdog_off", lambda qos: qos.watchdog is False),
        ("dscp_map", lambda qos: (qos.classes[26], qos.classes[48]) == (0, 6)),
        ("ecn_off", lambda qos: qos.ecn == {}),
        ("ecn_thresholds", lambda qos: qos.ecn == {3: Ecn(15000, 30000, 100.0)}),
        ("adaptive_routing", lambda qos: qos.adaptive_routing),
    ],
)
def test_a_wrong_setting_is_of_its_port_alone(name, seen):
    """The port reads back as wrong, and its neighbour, which had the same profile, as before."""
    nv, before = Nv(outputs()["configuration"]), nvue.parse(outputs())
    for line in change(name).apply:
        nv.run(line)
    after = facts_of(nv.text)
    assert seen(after.qos["swp51"])
    assert after.qos["swp52"] == before.qos["swp52"]


def test_a_port_keeps_its_other_lossless_priorities():
    """Of two priorities one goes, by a profile with the other."""
    printed = outputs()
    printed["configuration"] = printed["configuration"].replace(
        '"switch-priority": {"3": {}}', '"switch-priority": {"3,5": {}}'
    )
    nv = Nv(printed["configuration"])
    for line in change("pfc_off", printed=printed).apply:
        nv.run(line)
    assert facts_of(nv.text).qos["swp51"].pfc == (5,)


def test_words_follow_the_version():
    """5.15 says `state enabled` where older ones say `enable on`; 5.4 has no word before the port of a rule."""
    new, old = (outputs(version=f"DISTRIB_RELEASE={version}\n") for version in ("5.15.0", "5.4.0"))
    assert "adaptive-routing state enabled" in change("adaptive_routing", printed=new).apply[0]
    assert "adaptive-routing enable on" in change("adaptive_routing", printed=old).apply[0]
    assert "match ip dest-port 4791" in change("blackhole", printed=old).apply[0]
    assert "match ip udp dest-port 4791" in change("blackhole").apply[0]


def test_nothing_is_saved():
    """Automatic saving goes off with the change and on again with its end, so that a restart takes the change back."""
    made = change("down")
    assert "nv set system config auto-save state disabled || nv set system config auto-save enable off" in made.apply[0]
    assert "nv unset system config auto-save" in made.revert[0]


@pytest.mark.parametrize(
    ("name", "port", "parameters", "words"),
    [
        ("down", "swp4", {}, "shut down already"),
        ("down", "swp9", {}, "has no port swp9"),
        ("mtu", "swp1", {"mtu_bytes": 9216.0}, "ask for a smaller one"),
        ("pfc_off", "swp1", {"priority": 4.0}, "no PFC at priority 4"),
        ("watchdog_off", "swp52", {}, "no PFC watchdog"),
        ("dscp_map", "swp1", {"dscp": 26.0, "class": 3.0}, "already"),
        ("rate", "swp1", {"direction": "rx", "fraction": 0.5}, "direction tx"),
        ("ecmp_out", "swp1", {}, "no BGP neighbour"),
        ("speed", "swp1", {"fraction": 0.01}, "no speed so much lower"),
    ],
)
def test_what_cannot_be_done_is_refused(name, port, parameters, words):
    """Before anything is changed, with the reason and what to do."""
    with pytest.raises(UnhealthyError, match=words):
        change(name, port, **parameters)


@pytest.mark.parametrize(
    "changed",
    [{"configuration": "Invalid Command"}, {"configuration": "[]"}, {"interfaces": "{}"}, {"interfaces": "hello"}],
)
def test_other_output_is_refused(changed):
    """What another system or version prints is no configuration and no list of ports."""
    with pytest.raises(UnhealthyError, match="nv "):
        nvue.parse(outputs(**changed))
