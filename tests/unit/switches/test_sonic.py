"""SONiC: facts from its outputs, and the commands of each change with those that take it back."""

import json
import shlex

import pytest
from switch_outputs import sonic as outputs

from c4bench.errors import UnhealthyError
from c4bench.model.fault import FaultRequest
from c4bench.switches import sonic
from c4bench.switches.facts import Ecn


def change(name, port="Ethernet0", printed=None, **parameters):
    facts = sonic.parse(printed or outputs())
    request = FaultRequest("fault", "leaf0", port=port, parameters=parameters)
    return getattr(sonic, name)(facts, request)


def test_ports_queues_and_access_lists_are_read():
    """Speed, state, PFC, classes, marking, watchdog and room for access lists are what the switch printed."""
    facts = sonic.parse(outputs())
    assert facts.version == "SONiC.202311.1-abc"
    assert [(port.name, port.admin_up, port.oper_up) for port in facts.ports.values()] == [
        ("Ethernet0", True, True),
        ("Ethernet4", True, True),
        ("Ethernet8", False, False),
    ]
    port, qos = facts.ports["Ethernet0"], facts.qos["Ethernet0"]
    assert (port.speed_bps, port.mtu_bytes, port.addresses) == (100e9, 9100, ("10.0.0.0/31",))
    assert (qos.pfc, qos.classes[26], qos.queues[3], qos.watchdog) == ((3, 4), 3, 3, True)
    assert qos.ecn == {queue: Ecn(1048576, 2097152, 5.0) for queue in (3, 4)}
    assert facts.qos["Ethernet8"].ecn == qos.ecn
    assert not facts.qos["Ethernet4"].watchdog
    assert facts.acl_free == {"ingress": 7, "egress": 0}
    assert [(table.name, table.stage, table.ports, table.rules) for table in facts.acl_tables] == [
        ("DATAACL", "ingress", ("Ethernet8",), 1)
    ]
    assert facts.neighbours == {"Ethernet0": "10.0.0.1", "Ethernet4": "10.0.0.3"}


def test_a_port_is_shut_down_and_started():
    """The revert also restores the field that `config` writes."""
    made = change("down")
    assert made.apply == ("config interface shutdown Ethernet0",)
    assert made.revert == (
        "config interface startup Ethernet0",
        "sonic-db-cli CONFIG_DB HMSET 'PORT|Ethernet0' admin_status up",
    )


@pytest.mark.parametrize(
    ("fraction", "mbps"), [(0.25, "25000"), (0.5, "50000"), (0.3, "25000"), (0.1, "10000")]
)  # fmt: skip
def test_the_next_lower_speed_is_set(fraction, mbps):
    """The fastest speed that is no more than the share asked for."""
    made = change("speed", fraction=fraction)
    assert made.apply == (f"config interface speed Ethernet0 {mbps}",)
    assert made.revert[0] == "config interface speed Ethernet0 100000"


def test_roce_is_dropped_by_an_access_list_of_its_own():
    """The list is bound to the port before its rule, both go in the other order, and others' lists are untouched."""
    made = change("blackhole", direction="rx")
    table, rule, active = made.apply
    assert table == (
        "sonic-db-cli CONFIG_DB HMSET 'ACL_TABLE|C4BENCH_INGRESS' policy_desc c4bench type L3 stage ingress "
        "ports@ Ethernet0"
    )
    assert rule == (
        "sonic-db-cli CONFIG_DB HMSET 'ACL_RULE|C4BENCH_INGRESS|DROP' PRIORITY 9999 PACKET_ACTION DROP "
        "IP_PROTOCOL 17 L4_DST_PORT 4791"
    )
    assert "sonic-db-cli STATE_DB HGET 'ACL_RULE_TABLE|C4BENCH_INGRESS|DROP' status" in active
    assert made.revert == (
        "sonic-db-cli CONFIG_DB DEL 'ACL_RULE|C4BENCH_INGRESS|DROP'",
        "sonic-db-cli CONFIG_DB DEL 'ACL_TABLE|C4BENCH_INGRESS'",
    )


def test_lost_acknowledgements_match_the_roce_opcode():
    """The type of the list comes first and goes last; the opcode is IBTA's acknowledgement, 0x11."""
    made = change("acks_lost", printed=outputs(acl=None))
    assert made.apply[0].startswith("sonic-db-cli CONFIG_DB HMSET 'ACL_TABLE_TYPE|C4BENCH_ACKS' matches@ ")
    assert "BTH_OPCODE 0x11/0xff" in made.apply[2]
    assert "stage egress" in made.apply[1]
    assert made.revert[-1] == "sonic-db-cli CONFIG_DB DEL 'ACL_TABLE_TYPE|C4BENCH_ACKS'"


def test_a_ports_rate_is_limited_in_bytes_per_second():
    """A quarter of 100 Gbit/s is 3.125 GB/s; the field that was not there is deleted, and then the scheduler."""
    made = change("rate", fraction=0.25, direction="tx")
    assert made.apply == (
        "sonic-db-cli CONFIG_DB HMSET 'SCHEDULER|C4BENCH.Ethernet0' meter_type bytes pir 3125000000",
        "sonic-db-cli CONFIG_DB HMSET 'PORT_QOS_MAP|Ethernet0' scheduler C4BENCH.Ethernet0",
    )
    assert made.revert == (
        "sonic-db-cli CONFIG_DB HDEL 'PORT_QOS_MAP|Ethernet0' scheduler",
        "sonic-db-cli CONFIG_DB DEL 'SCHEDULER|C4BENCH.Ethernet0'",
    )
    assert change("rate", "Ethernet8", _with_port_8_up(), fraction=0.5, direction="tx").revert[0] == (
        "sonic-db-cli CONFIG_DB DEL 'PORT_QOS_MAP|Ethernet8'"
    )


def _with_port_8_up():
    status = outputs()["status"].replace("down     down  ", "  up       up  ")
    return outputs(status=status)


def test_a_next_hop_gets_an_address_that_nobody_has():
    """One that was resolved is resolved again; one that was fixed by hand gets its address back."""
    wrong = "ip neighbour replace 10.0.0.1 lladdr 02:c4:de:ad:00:00 dev Ethernet0 nud permanent"
    made = change("ecmp_member")
    assert (made.apply, made.revert) == ((wrong,), ("ip neighbour del 10.0.0.1 dev Ethernet0",))
    fixed = outputs(neighbours="10.0.0.1 dev Ethernet0 lladdr 02:aa:00:00:00:01 PERMANENT \n")
    assert change("ecmp_member", printed=fixed).revert == (
        "ip neighbour replace 10.0.0.1 lladdr 02:aa:00:00:00:01 dev Ethernet0 nud permanent",
    )
    plain = outputs()["configuration"].replace('"local_addr": "10.0.0.0"', '"local_addr": "10.1.0.0"')
    routed = outputs(
        configuration=plain, routes="10.8.0.0/16 proto bgp\n\tnexthop via 10.0.0.7 dev Ethernet0 weight 1\n"
    )
    assert "replace 10.0.0.7 lladdr" in change("ecmp_member", printed=routed).apply[0]


def test_what_a_switch_prints_is_never_run():
    """Names and values of a switch's configuration are single words of the lines that it is sent."""
    hostile = "3,4'; touch /tmp/x; $(reboot) `reboot` \"#"
    text = outputs()["configuration"].replace('"pfc_enable": "3,4"', f'"pfc_enable": {json.dumps(hostile)}')
    made = change("pfc_off", printed=outputs(configuration=text), priority=3)
    assert shlex.split(made.revert[0])[-1] == hostile


def test_a_member_leaves_its_ecmp_group_by_its_bgp_session():
    """The session over the port is shut down; a row that had no such field has none afterwards."""
    made = change("ecmp_out")
    assert made.apply == ("config bgp shutdown neighbor 10.0.0.1",)
    assert made.revert == (
        "config bgp startup neighbor 10.0.0.1",
        "sonic-db-cli CONFIG_DB HDEL 'BGP_NEIGHBOR|10.0.0.1' admin_status",
    )
    assert change("ecmp_out", "Ethernet4").revert[1].endswith("'BGP_NEIGHBOR|10.0.0.3' admin_status up")


@pytest.mark.parametrize(
    ("name", "parameters", "apply", "revert"),
    [
        ("pfc_off", {"priority": 3}, "HMSET 'PORT_QOS_MAP|Ethernet0' pfc_enable 4", "pfc_enable 3,4"),
        ("mtu", {"mtu_bytes": 1500}, "config interface mtu Ethernet0 1500", "config interface mtu Ethernet0 9100"),
        ("watchdog_off", {}, "DEL 'PFC_WD|Ethernet0'", "action drop detection_time 200 restoration_time 200"),
        ("dscp_map", {"dscp": 26, "class": 1}, "HMSET 'DSCP_TO_TC_MAP|C4BENCH_Ethernet0' 0 1 8 0 26 1",
         "HMSET 'PORT_QOS_MAP|Ethernet0' dscp_to_tc_map AZURE"),
        ("ecn_off", {}, "HDEL 'QUEUE|Ethernet0|3-4' wred_profile", "'QUEUE|Ethernet0|3-4' wred_profile AZURE_LOSSLESS"),
        ("ecn_thresholds", {"factor": 10.0}, "green_max_threshold 20971520", "wred_profile AZURE_LOSSLESS"),
    ],
)  # fmt: skip
def test_a_misconfiguration_changes_one_port_and_is_put_back(name, parameters, apply, revert):
    """Shared maps and profiles stay as they are; the port gets a copy, or loses the reference."""
    made = change(name, **parameters)
    assert apply in made.apply[0]
    assert revert in made.revert[0]


@pytest.mark.parametrize(
    ("name", "port", "changed", "parameters", "complaint"),
    [
        ("down", "Ethernet9", {}, {}, "has no port Ethernet9; it has: Ethernet0, Ethernet4"),
        ("down", "Ethernet8", {}, {}, "is shut down already"),
        ("down", "Ethernet0", {"tools": ""}, {}, "neither sonic-db-cli nor redis-cli"),
        ("speed", "Ethernet0", {}, {"fraction": 0.01}, "no speed that much lower"),
        ("blackhole", "Ethernet0", {}, {"direction": "tx"}, "no room for another access list at egress"),
        ("rate", "Ethernet0", {}, {"fraction": 0.5, "direction": "both"}, "ask for direction tx"),
        ("ecmp_out", "Ethernet8", "up", {}, "has no BGP neighbour"),
        ("pfc_off", "Ethernet0", {}, {"priority": 5}, "no PFC at priority 5"),
        ("ecn_off", "Ethernet4", {}, {}, "shares its row Ethernet4,Ethernet8"),
        ("watchdog_off", "Ethernet4", {}, {}, "has no PFC watchdog"),
        ("mtu", "Ethernet0", {}, {"mtu_bytes": 9100}, "ask for a smaller one"),
        ("dscp_map", "Ethernet8", {}, {"dscp": 26, "class": 1}, "no map of its own"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_or_put_back_is_refused(name, port, changed, parameters, complaint):
    """One line says why, before anything is changed."""
    printed = _with_port_8_up() if changed == "up" else outputs(**changed)
    with pytest.raises(UnhealthyError, match=complaint):
        change(name, port, printed, **parameters)


def test_an_older_switch_is_changed_by_redis_and_with_references_in_brackets():
    """Before 202111 a field names the table too; a switch without sonic-db-cli has redis-cli."""
    old = outputs()["configuration"].replace('"dscp_to_tc_map": "AZURE"', '"dscp_to_tc_map": "[DSCP_TO_TC_MAP|AZURE]"')
    made = change(
        "rate", printed=outputs(configuration=old, tools="/usr/bin/redis-cli\n"), fraction=0.5, direction="tx"
    )
    assert made.apply[1] == ("redis-cli -n 4 HMSET 'PORT_QOS_MAP|Ethernet0' scheduler '[SCHEDULER|C4BENCH.Ethernet0]'")
    assert sonic.parse(outputs(configuration=old)).qos["Ethernet0"].classes[26] == 3


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"configuration": "Traceback (most recent call last):"}, "sonic-cfggen printed no CONFIG_DB"),
        ({"status": "Fehler: keine Schnittstelle\n"}, "lists no port"),
        ({"status": outputs()["status"].replace("Admin", "State")}, "has no column Admin of Ethernet0"),
    ],
)
def test_output_of_another_form_is_refused(changed, complaint):
    """A switch that prints something else is not changed by guesses."""
    with pytest.raises(UnhealthyError, match=complaint):
        sonic.parse(outputs(**changed))


def test_equal_listings_are_equal_configurations():
    """The order of rows and of fields does not matter; another value, row or port that is up does."""
    facts = sonic.parse(outputs())
    again = outputs()["configuration"].replace(
        '"holdtime": "10", "local_addr": "10.0.0.0"', '"local_addr": "10.0.0.0", "holdtime": "10"'
    )
    assert sonic.listing(sonic.parse(outputs(configuration=again)), None) == sonic.listing(facts, None)
    other = sonic.listing(sonic.parse(outputs(configuration=again.replace('"9990"', '"9991"'))), None)
    assert {section for section, text in other.items() if text != sonic.listing(facts, None)[section]} == {
        "sonic ACL_RULE"
    }
    down = sonic.listing(sonic.parse(_with_port_8_up()), None)
    assert down["sonic ports up"] == "Ethernet0\nEthernet4\nEthernet8\n"
