"""What a SONiC configuration means for a port of the lab: its state, its queue, its access lists."""

import copy

import msgspec
import pytest

from c4bench.lab import topology_file
from c4bench.lab.twin import factory, forwarding
from c4bench.lab.twin.ports import layout_of

RACK = topology_file.load("rack-2x4")
LEAF = layout_of(RACK, "leaf0")
PAUSING = LEAF.ports[0]
PORT, UPLINK = (
    msgspec.structs.replace(port, cable=msgspec.structs.replace(port.cable, pfc=False))
    for port in (PAUSING, LEAF.ports[-1])
)
FIRST = factory.configuration(LEAF, RACK.ecn)
ROCE = {"PRIORITY": "9999", "PACKET_ACTION": "DROP", "IP_PROTOCOL": "17", "L4_DST_PORT": "4791"}


def state(config, port=PORT, dscp=26):
    return forwarding.port_state(config, port, dscp)


def changed(table, key, **fields):
    """The first configuration with these fields of a row."""
    config = copy.deepcopy(FIRST)
    config.setdefault(table, {}).setdefault(key, {}).update(fields)
    return config


def lines(before, after, port=PORT):
    return forwarding.changes(port, state(before, port), state(after, port))


def test_ports_are_named_and_numbered_as_sonic_does():
    """Ports to hosts come first, each fourth number, with addresses of this end and the neighbour at the other."""
    assert [port.name for port in LEAF.ports] == [f"Ethernet{number}" for number in (0, 4, 8, 12, 16, 20)]
    assert (PORT.alias, PORT.serdes, PORT.speed_mbps) == ("etp1", "0,1,2,3", 25_000)
    assert UPLINK.addresses == ("172.16.0.5/30",)
    assert UPLINK.neighbour.address == "172.16.0.6"
    assert {port.speed_mbps for port in layout_of(RACK, "spine1").ports} == {50_000}


def test_a_shutdown_port_is_set_down_and_a_started_one_gets_its_neighbour_back():
    """Only the link changes; the neighbour, which Linux forgets with the link, is written again."""
    down = changed("PORT", "Ethernet0", admin_status="down")
    assert lines(FIRST, down) == {"ip": ["link set Ethernet0 down"]}
    up, neighbour = lines(down, FIRST)["ip"]
    assert up == "link set Ethernet0 up"
    assert neighbour == "neighbour replace 10.0.0.1 lladdr 02:c4:00:00:00:01 dev Ethernet0 nud permanent"
    assert lines(FIRST, FIRST) == {}
    assert lines(FIRST, changed("PORT", "Ethernet0", mtu="1500")) == {"ip": ["link set Ethernet0 mtu 1500"]}


def test_the_slower_of_port_and_queue_shapes():
    """A port has its speed, a scheduler's peak rate of the whole port or of the queue in use is a limit below it."""
    assert "rate 10000000000bit" in state(changed("PORT", "Ethernet0", speed="10000")).shaping[0]
    for place, key in (("PORT_QOS_MAP", "Ethernet0"), ("QUEUE", "Ethernet0|3")):
        config = changed("SCHEDULER", "slow", pir=str(125_000_000), meter_type="bytes")
        config[place][key]["scheduler"] = "slow"
        assert "rate 1000000000bit" in state(config).shaping[0], place
    other = changed("SCHEDULER", "slow", pir="125000000", meter_type="bytes")
    other["QUEUE"]["Ethernet0|5"]["scheduler"] = "slow"
    assert state(other) == state(FIRST)


def test_packets_are_marked_where_their_queue_has_a_profile():
    """Thresholds are the profile's; another DSCP, another map or no profile means no marking at all."""
    assert "min 100000 max 400000 probability 0.2" in state(FIRST).shaping[1]
    high = changed("WRED_PROFILE", factory.WRED, green_min_threshold="200000")
    assert "min 200000 max 400000" in state(high).shaping[1]
    unmarked = changed("QUEUE", "Ethernet0|3", wred_profile="")
    wrong_map = changed("DSCP_TO_TC_MAP", "AZURE", **{"26": "0"})
    for config, dscp in ((unmarked, 26), (wrong_map, 26), (FIRST, 0)):
        assert len(state(config, dscp=dscp).shaping) == 1
    assert lines(FIRST, unmarked)["tc"][0] == "qdisc del dev Ethernet0 root"
    ranged = changed("QUEUE", "Ethernet0,Ethernet4|3-4", wred_profile=factory.WRED)
    del ranged["QUEUE"]["Ethernet0|3"]
    assert len(state(ranged).shaping) == 2


def test_a_rule_drops_on_its_port_at_its_stage():
    """A rule of a bound table becomes a filter of that port and stage; another port has none."""
    config = changed("ACL_TABLE", "T", type="L3", stage="egress", **{"ports@": "Ethernet0"})
    config["ACL_RULE"] = {"T|DROP": dict(ROCE)}
    assert forwarding.status_of_rules(config) == {"T|DROP": True}
    assert lines(FIRST, config)["tc"] == [
        "qdisc add dev Ethernet0 clsact",
        "filter add dev Ethernet0 egress protocol ip pref 10 u32 "
        "match ip protocol 17 0xff match ip dport 4791 0xffff action drop",
    ]
    assert lines(config, FIRST)["tc"] == ["qdisc del dev Ethernet0 clsact"]
    assert lines(FIRST, config, UPLINK) == {}


def test_acknowledgements_alone_can_be_matched():
    """A custom table's rule may match the RoCE opcode; the higher priority is asked first."""
    config = changed("ACL_TABLE_TYPE", "ACKS", **{"matches@": "BTH_OPCODE"})
    config["ACL_TABLE"] = {"T": {"type": "ACKS", "stage": "ingress", "ports@": "Ethernet0"}}
    config["ACL_RULE"] = {
        "T|ALL": ROCE | {"PRIORITY": "1"},
        "T|ACKS": ROCE | {"BTH_OPCODE": "0x11/0xff", "PACKET_ACTION": "FORWARD"},
    }
    first, second = state(config).rules
    assert (first.name, first.drops, second.name, second.drops) == ("ACKS", False, "ALL", True)
    assert "match u8 0x11 0xff at 28" in first.matches


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ({"type": "L3", "stage": "ingress"}, ROCE | {"TCP_FLAGS": "0x2/0x2"}),
        ({"type": "L3", "stage": "ingress"}, ROCE | {"PACKET_ACTION": "REDIRECT:Ethernet4"}),
        ({"type": "L3", "stage": "ingress"}, ROCE | {"DSCP": "AF11"}),
        ({"type": "UNKNOWN", "stage": "ingress"}, ROCE),
    ],
)
def test_what_the_switch_cannot_match_stays_inactive(table, rule):
    """A rule with an unknown field, action or table type is inactive, and no filter is made of it."""
    config = changed("ACL_TABLE", "T", **table, **{"ports@": "Ethernet0"})
    config["ACL_RULE"] = {"T|X": rule}
    assert forwarding.status_of_rules(config) == {"T|X": False}
    assert state(config).rules == ()


def test_a_full_chip_takes_no_more():
    """Rules beyond a table's room, and tables beyond a stage's, are inactive; those before them stay."""
    config = changed("ACL_TABLE", "T0", type="L3", stage="ingress", **{"ports@": "Ethernet0"})
    rules = {f"T0|R{number:03}": ROCE | {"PRIORITY": str(999 - number)} for number in range(130)}
    config["ACL_RULE"] = rules
    active = [name for name, on in forwarding.status_of_rules(config).items() if on]
    assert active == list(rules)[: forwarding.RULES_AT_MOST]
    for number in range(1, 6):
        config["ACL_TABLE"][f"T{number}"] = config["ACL_TABLE"]["T0"]
    config["ACL_RULE"] = {f"T{number}|R": ROCE for number in range(6)}
    assert list(forwarding.status_of_rules(config).values()) == [True] * forwarding.TABLES_AT_MOST + [False] * 2


def test_flow_control_is_set_from_the_tables_of_qos():
    """Lossless priorities, thresholds, classes and the watchdog reach the port; without flow control nothing does."""
    lines = state(FIRST, PAUSING).pauses
    wanted = (
        "rate 25000000000",
        "lossless 8",
        "xoff 200000",
        "xon 100000",
        "detect_us 200000",
        "forward 0",
        "dscp 26 3",
    )
    assert {f"Ethernet0 {words}" for words in wanted} <= set(lines)
    assert state(FIRST).pauses == ()
    for change, words in (
        (changed("PORT_QOS_MAP", "Ethernet0", pfc_enable=""), "lossless 0"),
        (changed("PORT_QOS_MAP", "Ethernet0", pfc_enable="3,4"), "lossless 24"),
        (changed("DSCP_TO_TC_MAP", "AZURE", **{"26": "0"}), "dscp 26 0"),
        (changed("PFC_WD", "Ethernet0", action="forward"), "forward 1"),
        (changed("BUFFER_PROFILE", "pg_lossless_profile", xoff="50000"), "xoff 50000"),
    ):
        assert set(state(change, PAUSING).pauses) - set(lines) == {f"Ethernet0 {words}"}
    unwatched = copy.deepcopy(FIRST)
    del unwatched["PFC_WD"]["Ethernet0"]
    assert "Ethernet0 detect_us 0" in state(unwatched, PAUSING).pauses
