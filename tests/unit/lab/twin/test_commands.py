"""The commands of a SONiC switch, against a real redis-server: what they print, write and refuse."""

import json
import os
import shutil
import subprocess
import time

import pytest

from c4bench.doctor.outputs import sonic
from c4bench.doctor.outputs.layout import About
from c4bench.lab import topology_file
from c4bench.lab.twin import commands, config, config_db, counters, factory, redis, show, tools
from c4bench.lab.twin.ports import layout_of

RACK = topology_file.load("rack-2x4")
LEAF = layout_of(RACK, "leaf0")
MODULES = (config, show, tools)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The socket of a redis-server."""
    if shutil.which("redis-server") is None:
        pytest.skip("unsupported: redis-server is not installed (apt-get install redis-server)")
    folder = tmp_path_factory.mktemp("redis")
    path = folder / "redis.sock"
    argv = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as running:
        while not path.exists():
            time.sleep(0.01)
        yield path
        running.terminate()


@pytest.fixture
def databases(server, monkeypatch):
    """The databases of a switch with the first configuration, by name; they are empty but for that."""
    monkeypatch.setattr(commands, "Redis", lambda name: redis.Redis(name, str(server)))
    opened = {name: redis.Redis(name, str(server)) for name in ("CONFIG_DB", "APPL_DB", "COUNTERS_DB")}
    opened["CONFIG_DB"].call("FLUSHALL")
    config_db.add(opened["CONFIG_DB"], factory.configuration(LEAF, RACK.ecn))
    yield opened
    for database in opened.values():
        database.close()


@pytest.fixture
def switch(databases):
    """CONFIG_DB."""
    return databases["CONFIG_DB"]


@pytest.fixture
def run(switch, capsys):
    """Run a command line as a user; returns its exit code and what it printed."""

    def call(line, user=0):
        code = commands.run(line.split(), user, LEAF, RACK.ecn)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    assert switch.keys("PORT|*")
    return call


def facts(parser, text):
    return list(parser(text, About()))


def test_the_status_of_ports_is_read_by_the_doctor(run, databases):
    """`show interfaces status` has names, speeds and states where the parser of real outputs finds them."""
    databases["APPL_DB"].write("PORT_TABLE", "Ethernet4", {"oper_status": "up"})
    run("config interface shutdown Ethernet0,Ethernet8-12")
    ports = {fact.name: fact for fact in facts(sonic.status, run("show interfaces status")[1])}
    assert list(ports) == [port.name for port in LEAF.ports]
    assert [port for port, fact in ports.items() if not fact.admin_up] == ["Ethernet0", "Ethernet8", "Ethernet12"]
    assert (ports["Ethernet4"].up, ports["Ethernet4"].rate_bps, ports["Ethernet4"].mtu_bytes) == (True, 25e9, 9100)
    assert run("show interfaces status Ethernet99")[0] == 2


def test_the_configuration_is_printed_and_read_again(run, switch, tmp_path):
    """What `sonic-cfggen` prints is what `config reload` takes: a list stays a list, and other rows go."""
    run("config acl add table T L3 -p Ethernet0,Ethernet4 -s egress")
    path = tmp_path / "saved.json"
    assert run(f"config save -y {path}")[0] == 0
    saved = json.loads(path.read_text())
    assert saved["ACL_TABLE"]["T"]["ports"] == ["Ethernet0", "Ethernet4"]
    assert json.loads(run("sonic-cfggen -d --print-data")[1]) == saved
    switch.write("ACL_RULE", "T|R", {"PRIORITY": 1})
    assert run(f"config reload -y {path}")[0] == 0
    assert config_db.printed(switch) + "\n" == path.read_text()
    path.write_text("{]")
    assert run(f"config reload -y {path}")[0] == 1
    assert json.loads(config_db.printed(switch)) == saved


def test_whoever_is_not_root_changes_nothing(run, switch):
    """Every command that changes something refuses an ordinary user before anything else."""
    before = switch.tables()
    changing = [words for words, function in commands.TABLE.items() if words[0] == "config"]
    assert len(changing) > 20
    for words in changing:
        assert run(" ".join(words), user=1000) == (1, "Root privileges are required for this operation\n")
    assert run("sonic-db-cli CONFIG_DB DEL PORT|Ethernet0", user=1000)[0] == 1
    assert switch.tables() == before


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("config interface speed Ethernet0 100000", "Invalid speed"),
        ("config interface mtu Ethernet0 70000", "range"),
        ("config interface pfc priority Ethernet0 9 off", "priority"),
        ("config interface pfc priority Ethernet0 3 maybe", "choose from"),
        ("config interface shutdown Ethernet0 Ethernet4", "extra argument"),
        ("config interface shutdown", "Missing argument"),
        ("config acl add table T L3 -s sideways", "choose from"),
        ("config ecn -profile NONE -gmin 5", "NONE"),
        ("config", "Commands:"),
        ("config interface paint Ethernet0", "No such command"),
    ],
)
def test_a_wrong_call_is_refused_and_changes_nothing(run, switch, line, said):
    """The exit code is not 0, one line names the problem, and CONFIG_DB is as before."""
    before = switch.tables()
    code, printed = run(line)
    assert code
    assert said in printed
    assert switch.tables() == before


def test_qos_is_set_by_the_documented_commands(run, switch):
    """PFC of a priority, the watchdog, thresholds and marking of a queue go to the fields that SONiC has for them."""
    run("config interface pfc priority Ethernet0 3 off")
    run("pfcwd stop Ethernet4")
    run("ecnconfig -p AZURE_LOSSLESS -gmin 5000 -gdrop 7")
    run("ecnconfig -q 3 off")
    assert switch.row("PORT_QOS_MAP|Ethernet0")["pfc_enable"] == ""
    assert not switch.row("PFC_WD|Ethernet4")
    assert switch.row("WRED_PROFILE|AZURE_LOSSLESS")["green_min_threshold"] == "5000"
    assert "wred_profile" not in switch.row("QUEUE|Ethernet20|3")
    assert next(iter(facts(sonic.pfc_priority, run("show pfc priority")[1]))).port == "Ethernet0"
    assert facts(sonic.ecn, run("show ecn")[1])[0].ecn == "ecn_all"
    run("config qos reload")
    run("pfcwd start_default")
    assert switch.tables() == _stored(factory.configuration(LEAF, RACK.ecn))


def _stored(tables):
    """Tables as redis has them, whose rows are never empty."""
    return {name: {key: row or {"NULL": "NULL"} for key, row in rows.items()} for name, rows in tables.items()}


ACL = {
    "acl": {
        "acl-sets": {
            "acl-set": {
                "T": {
                    "acl-entries": {
                        "acl-entry": {
                            "1": {
                                "actions": {"config": {"forwarding-action": "DROP"}},
                                "ip": {"config": {"protocol": "IP_UDP", "source-ip-address": "10.0.0.1/32"}},
                                "transport": {"config": {"destination-port": "4791"}},
                            }
                        }
                    }
                }
            }
        }
    }
}


def test_rules_are_loaded_from_a_file(run, switch, tmp_path):
    """A rule's priority falls with its number; a file for a table that is not there changes nothing."""
    path = tmp_path / "acl.json"
    path.write_text(json.dumps(ACL))
    assert run(f"config acl update full {path}")[0] == 1
    run("config acl add table T L3 -p Ethernet0")
    switch.write("ACL_RULE", "T|OLD", {"PRIORITY": 1})
    assert run(f"acl-loader update full {path}")[0] == 0
    rule = {"PRIORITY": "9999", "PACKET_ACTION": "DROP", "IP_PROTOCOL": "17"}
    assert switch.table("ACL_RULE") == {"T|RULE_1": rule | {"SRC_IP": "10.0.0.1/32", "L4_DST_PORT": "4791"}}
    assert "L4_DST_PORT: 4791" in run("show acl rule")[1]


DEV = """\
Inter-|   Receive                                          |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
Ethernet0: 1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0
"""


def test_counters_are_printed_with_the_columns_of_the_manual(run, databases):
    """The kernel's counts reach `portstat`, also as JSON, and `sonic-clear counters` takes them as zero."""
    database = databases["COUNTERS_DB"]
    oid = counters.port_oid(1)
    database.together([redis.set_row("COUNTERS_PORT_NAME_MAP", {"Ethernet0": oid})])
    database.together([redis.set_row(f"COUNTERS:{oid}", counters.read_ports(DEV)["Ethernet0"])])
    row = json.loads(run("portstat -j")[1])["Ethernet0"]
    assert (row["RX_OK"], row["RX_ERR"], row["RX_DRP"], row["TX_OK"]) == ("10", "1", "2", "20")
    assert (row["TX_ERR"], row["TX_DRP"], row["RX_OVR"]) == ("3", "4", "N/A")
    counted = facts(sonic.counters, run("show interfaces counters errors")[1])
    assert next(fact.counts for fact in counted if getattr(fact, "counts", {}))["RX_DRP"] == 2
    dumped = json.loads(run("sonic-db-dump -n COUNTERS_DB -k COUNTERS:oid:0x1000*")[1])
    assert dumped[f"COUNTERS:{oid}"]["value"]["SAI_PORT_STAT_IF_IN_OCTETS"] == "1000"


def test_a_table_is_laid_out_as_tabulate_does():
    """A heading widens its column by two, cells align right, and several lines of a cell stand below each other."""
    rows = [("Ethernet0", "3\n4"), ("e", "10")]
    assert show.table(("Interface", "N"), rows).splitlines() == [
        "  Interface    N",
        "-----------  ---",
        "  Ethernet0    3",
        "               4",
        "          e   10",
    ]


def test_a_unit_runs_its_command_after_a_time_unless_it_is_stopped(run, tmp_path, monkeypatch):
    """A timer's command runs once; a stopped one never does, and `is-active` tells them apart."""
    monkeypatch.setattr(tools, "_UNITS", tmp_path / "units")
    made = [tmp_path / name for name in ("first", "second")]
    for path in made:
        assert run(f"systemd-run --quiet --collect --unit={path.name} --on-active=300ms touch {path}") == (0, "")
    units = [json.loads((tools._UNITS / path.name).read_bytes())["pid"] for path in made]
    assert run("systemctl is-active first.timer")[0] == 0
    assert run("systemd-run --unit=first true")[0] == 1
    assert run("systemctl --quiet stop second.timer unknown.service")[0] == 0
    for pid in units:
        os.waitpid(pid, 0)
    assert [path.exists() for path in made] == [True, False]
    assert run("systemctl is-active first.timer")[0] == 3
