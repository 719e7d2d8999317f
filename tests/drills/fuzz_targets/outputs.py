"""What hosts, switches and tools print: counters, neighbours, settings, reports of themselves; and packets."""

import json
import struct
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
from fuzz_mutations import Corpus, of
from fuzzing import Target

from c4bench.control.paths import switches as counted
from c4bench.control.paths.switches import PortCounters, port_counters
from c4bench.decoding import from_yaml
from c4bench.doctor import files, hosts, look, overview, switches
from c4bench.doctor.findings import Device, HostSelfReport, InjectorState, Knob, Netdev, Port
from c4bench.doctor.lldp import neighbours
from c4bench.errors import UnhealthyError
from c4bench.inventory import cabling, load
from c4bench.lab.topology_file import GraphForm
from c4bench.remote import Completed
from c4bench.reserve import keeper, reservation
from c4bench.switches import eos, nvue
from c4bench.verbs.packet_capture import parse as parse_packet
from c4bench.verbs.probe import incoming_interface, parse_error
from fuzz_targets.evidence import recorded
from fuzz_targets.files import GRAPH_INVENTORY

# Between the outputs of several commands in one input.
_NEXT = b"\x1e"
_CASES = Path(__file__).parents[2] / "evidence_fixtures/cases"
_PRINTED = Path(__file__).parents[2] / "unit/switches/printed"
_SAVED = tuple(
    path.read_bytes()
    for path in (*sorted((_CASES / "16-device-outputs").rglob("*.*")), *sorted(_PRINTED.glob("*_configuration.json")))
)
_CABLING = tuple(path.read_bytes() for path in sorted((_CASES / "14-cabling").iterdir()))
_COUNTED = (_CASES / "16-device-outputs/ethtool_symbol_errors/gpu-e03_ens5f0np0_after.txt").read_bytes()


class _Host:
    """A connection to a host or a switch on which commands print these outputs, one after the other, then the last."""

    def __init__(self, *outputs, sonic=True):
        self._left, self._last, self._sonic = [*outputs], b"", sonic

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Nothing is left to close."""

    def run(self, argv, **_):
        """A command of which is only asked whether it is there, is there if this is a SONiC switch."""
        if argv[0] == "sh" and "command -v" in argv[-1]:
            return Completed(0, b"/usr/bin/x\n", b"") if self._sonic else Completed(1, b"", b"")
        return Completed(0, self._next(), b"")

    def start(self, _argv):
        """A session, in which each line gets the next output as its answer."""
        return self

    def _next(self):
        self._last = self._left.pop(0) if self._left else self._last
        return self._last

    def write_line(self, _line):
        """What is asked does not matter."""

    def read_line(self, _timeout_s):
        """The next output as a line; the clock is asked several times."""
        return self._next().decode(errors="replace").partition("\n")[0]

    def close(self):
        """Nothing is left to close."""


class _Switch(_Host):
    """A SONiC switch, or another, on which these are the neighbours, the configuration and the counters."""

    def __init__(self, lldp, config=b"", *counted, sonic):
        super().__init__(*counted or [config], sonic=sonic)
        self._known = {"lldpctl": lldp, "sonic-cfggen": config, "show interfaces status": _STATUS, "ip neighbour": b""}

    def run(self, argv, *, input=b"", **_):  # noqa: A002
        """The output of the command that the line has in it."""
        line = input.decode() or " ".join(argv)
        if "command -v" in line:
            return Completed(0 if self._sonic and "sonic" in line else 1, line.split()[2].encode(), b"")
        known = next((text for word, text in self._known.items() if word in line), None)
        return Completed(0, self._next() if known is None else known, b"")


def _inventory(folder):
    path = folder / "hosts.yml"
    path.write_bytes(GRAPH_INVENTORY)
    return load(path)


@contextmanager
def _ports(folder, *, sonic):
    """Counters of a switch, as path planning reads them."""
    known = _inventory(folder)

    def consume(data):
        host = _Host(*data.split(_NEXT), sonic=sonic)
        ports = counted.Switches(known, lambda _: host, wait=lambda _: None).ports()
        assert counted.carried_bytes(ports, ports) is not None

    yield consume


@contextmanager
def _sonic_counters(_folder):
    def consume(data):
        names, _, counters = data.partition(_NEXT)
        assert all(isinstance(one, PortCounters) for one in port_counters("leaf0", names, counters).values())

    yield consume


@contextmanager
def _audited(folder, *, sonic=True):
    """A switch's neighbours, settings and counters, as `c4bench doctor` prints what is wrong with them."""
    known = _inventory(folder)

    def consume(data):
        reports = switches.ask_all(known, lambda *_: _Switch(*data.split(_NEXT), sonic=sonic), 0.0)
        _shown(overview.switch_lines(reports))
        _shown(overview.setting_lines(overview.document(known, (), reports)))
        _shown(overview.cable_lines(overview.document(known, (), reports)))

    yield consume


def _shown(lines):
    """What the doctor prints must encode, and be bounded."""
    for line in lines:
        line.encode()
        assert len(line) < 20_000, f"a line of {len(line)} characters"


@contextmanager
def _looked_at(folder):
    """A host's report of itself and its clock, as `c4bench doctor` prints what follows from them."""
    known = _inventory(folder)

    def consume(data):
        clock, _, report = data.partition(_NEXT)
        report, _, printed = report.partition(_NEXT)
        answers = [*[clock] * 8, report, printed or b"[]"]
        reports = [hosts._ask(known.hosts[0], known.access["a"], (), lambda *_: _Host(*answers), 0.0)]
        _shown([*overview.lines(reports), *overview.remark_lines(reports)])
        msgspec.json.encode(overview.document(known, reports, ()))

    yield consume


@contextmanager
def _saved(folder):
    """A saved output of a host or a switch, as `c4bench doctor --files` reads and shows it."""
    path = folder / "gpu-a1_ens1f0_before.txt"

    def consume(data):
        path.write_bytes(data)
        found = files.judge_files([folder])
        _shown(files.lines(found))
        msgspec.json.encode(found)
        files.recognise(data[:4096], "x")

    yield consume


@contextmanager
def _cabling(folder):
    """A cabling file of another tool, as `c4bench topology import` reads it and writes it as a topology."""
    path = folder / "fabric.out"

    def consume(data):
        path.write_bytes(data)
        wiring = cabling.with_roles(cabling.read(path))
        wiring = cabling.checked(wiring)
        from_yaml(cabling.document(wiring, str(path)), GraphForm)

    yield consume


@contextmanager
def _read(_folder, read):
    yield read


def _system(data, system):
    """A switch's list of interfaces, beside its recorded configuration."""
    configuration = (_PRINTED / f"{system.name}_configuration.json").read_text()
    facts = system.parse({"configuration": configuration, "interfaces": data.decode(errors="replace")})
    system.listing(facts, None)


def _tools(data):
    """The tools of a host's network, as the doctor's part on the host reads what they print."""
    text = data.decode("utf-8", "surrogateescape")
    look.mlnx_trust(text)
    look.priorities(text)
    look.forced_class(text)
    look.dcb_trust(text)
    look.dcb_pfc(text)


class _Line:
    """A session that answers one line."""

    def __init__(self, line):
        self._line = line

    def read_line(self, _timeout_s):
        return self._line


def _kept(data):
    """What the keeper of a host's reservation answers."""
    answer = reservation._read("h0", _Line(data.decode(errors="replace").partition("\n")[0]))
    reservation.Reservation._refuse_held(None, "h0", answer)


@contextmanager
def _lock_file(folder):
    """The file of a reservation, which every user of a host can write to."""
    path = folder / "reservation"

    def consume(data):
        path.write_bytes(data)
        with path.open("rb") as file:
            json.dumps({"held": False, "by": keeper.read(file.fileno())})

    yield consume


def _capture(data):
    parse_packet(data)
    incoming_interface(data)


def _error_queue(data):
    """The ancillary data of a socket's error queue, which begin with what the kernel writes."""
    if len(data) >= 32:
        parse_error(((0, 11, data),))


def _json(document_):
    return json.dumps(document_).encode()


def _dumped(key, value):
    return {key: {"expireat": 1700000000.1, "ttl": -0.001, "type": "hash", "value": value}}


def _interface(name, address, count):
    counters = {"bytes": count, "packets": count, "errors": 0, "dropped": 0}
    return {"ifname": name, "mtu": 9100, "addr_info": [{"family": "inet", "local": address, "prefixlen": 31}],
            "stats64": {"rx": counters, "tx": counters}}  # fmt: skip


_ADDRESSES = _json([{"ifname": "lo"}, _interface("Ethernet0", "10.0.0.1", 900), _interface("swp5", "10.0.0.3", 700)])
_NAME_MAP = _json(_dumped("COUNTERS_PORT_NAME_MAP", {"Ethernet0": "oid:0x1", "Ethernet4": "oid:0x2"}))
_COUNTERS = _json(_dumped("COUNTERS:oid:0x1", {
    "SAI_PORT_STAT_IF_IN_OCTETS": "98765432109", "SAI_PORT_STAT_IF_IN_UCAST_PKTS": "24000000",
    "SAI_PORT_STAT_IF_IN_NON_UCAST_PKTS": "17", "SAI_PORT_STAT_IF_OUT_OCTETS": "N/A"}))  # fmt: skip
_QOS = {"dscp_to_tc_map": "AZURE", "pfc_enable": "3,4", "pfc_to_queue_map": "AZURE", "tc_to_queue_map": "AZURE"}
_CONFIG = _json({
    "PORT": {"Ethernet0": {"admin_status": "up", "mtu": "9100"}, "Ethernet4": {"admin_status": "up", "mtu": "1500"}},
    "PORT_QOS_MAP": {"Ethernet0,Ethernet4": _QOS}, "QUEUE": {"Ethernet0|3": {"wred_profile": "[WRED_PROFILE|A]"}},
    "WRED_PROFILE": {"A": {"ecn": "ecn_all"}}, "PFC_WD": {"Ethernet0": {"action": "drop"}},
    "DSCP_TO_TC_MAP": {"AZURE": {"0": "0", "26": "3"}}})  # fmt: skip
_STATUS = b"""  Interface  Lanes  Speed   MTU  Oper  Admin
-----------  -----  -----  ----  ----  -----
  Ethernet0    0,1   100G  9100    up     up
  Ethernet4    2,3   100G  1500    up     up
"""
_PORTSTAT = _json({"Ethernet0": {"STATE": "U", "RX_ERR": "1,204", "RX_DRP": "0", "TX_ERR": "N/A", "TX_DRP": "0"}})
_DCB = _json({"dscp_prio": [[26, 3], [48, 6]], "prio-pfc": [False, True, "on"]})
_LLDP = _json({"lldp": [{"interface": [{"name": "eth2", "chassis": [{"name": [{"value": "leaf0.dc1.example"}]}],
                                        "port": [{"id": [{"value": "Ethernet0"}]}]}]}]})  # fmt: skip
_NETWORKD = _json(
    {"Neighbors": [{"InterfaceName": "eth2", "Neighbors": [{"SystemName": "leaf0", "PortID": "Ethernet0"}]}]}
)
_LINKS = _json([{"ifname": "swp1", "stats64": {"rx": {"errors": 3}, "tx": {"errors": 0}}}, {"ifname": "lo"}])


def _report():
    port = Port(1, "Ethernet", "ACTIVE", "100 Gb/sec (2X HDR)", ("IB/RoCE v1", "RoCE v2"), "eth2", 0)
    netdev = Netdev(9000, "up", (3,), (3,), "dscp", tuple(dscp // 8 for dscp in range(64)))
    python = ".".join(map(str, sys.version_info[:3]))
    device = Device("mlx5_0", False, "22.36.1010", "MT_0000000359", (port,))
    injector = InjectorState(True, "", ("{}",))
    report = HostSelfReport(python, False, "0.1.0", (device,), "", {"eth2": netdev}, {"0": Knob("LiveSourcePort", "")},
                            -1, ("NVIDIA H100",), injector, _LLDP.decode())  # fmt: skip
    printed = msgspec.json.encode([_COUNTED.decode(errors="replace"), "", "driver: mlx5_core\nfirmware-version: 1 (X)"])
    return Corpus("text", (_NEXT.join((b"1700000000.5", msgspec.json.encode(report), printed)),))


def _packets():
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 60, 0, 0, 64, 17, 0, bytes(4), b"\x0a\0\0\1")
    extension = (
        struct.pack("!BxH", 0x20, 0) + struct.pack("!HBB", 24, 2, 0x0E) + struct.pack("!IHxx4s", 7, 1, b"\x0a\0\0\1")
    )
    return Corpus("binary", (ip + struct.pack(">HHHH", 49152, 4791, 40, 0) + bytes(20), extension + b"\x08leaf0\0\0\0"))


_TOOLS = ("mlnx_qos.txt", "rdma_link.txt", "ethtool_statistics.txt", "show_interfaces_counters.txt")
_HELD = {"held": False, "by": {"user": "a@b", "command": "pytest", "since_s": 1.7e9, "ttl_s": 30.0}}
TARGETS = (
    Target("switch-ports", of("json", _ADDRESSES), partial(_ports, sonic=False)),
    Target("switch-ports-sonic", of("text", _NEXT.join((_ADDRESSES, _NAME_MAP, _COUNTERS))),
           partial(_ports, sonic=True)),
    Target("sonic-counters", of("text", _NEXT.join((_NAME_MAP, _COUNTERS))), _sonic_counters),
    Target("doctor-switch", of("text", _NEXT.join((_LLDP, _CONFIG, _PORTSTAT)),
                                                    _NEXT.join((_LLDP, _CONFIG, *recorded("portstat.txt")))), _audited),
    Target("doctor-config", of("json", _CONFIG), lambda folder: _audited_one(folder, 1)),
    Target("doctor-portstat", of("json", _PORTSTAT), lambda folder: _audited_one(folder, 2)),
    Target("switch-nvue", of("json", (_PRINTED / "nvue_interfaces.json").read_bytes()),
           partial(_read, read=partial(_system, system=nvue.SYSTEM)), (UnhealthyError,)),
    Target("switch-eos", of("json", (_PRINTED / "eos_interfaces.json").read_bytes()),
           partial(_read, read=partial(_system, system=eos.SYSTEM)), (UnhealthyError,)),
    Target("doctor-lldp", of("json", _LLDP, _NETWORKD, *recorded("lldpctl.json")),
           partial(_read, read=neighbours)),
    Target("doctor-links", of("text", _NEXT.join((_LLDP, _LINKS))), partial(_audited, sonic=False)),
    Target("doctor-host", _report, _looked_at),
    Target("doctor-files", of("text", *_SAVED), _saved),
    Target("cabling", of("text", *_CABLING), _cabling, sound=False),
    Target("doctor-tools", of("text", *recorded(*_TOOLS)), partial(_read, read=_tools)),
    Target("doctor-dcb", of("json", _DCB), partial(_read, read=_tools)),
    Target("keeper-answer", of("json", _json(_HELD), _json({"held": True}), _json({"left": ["x"]})),
           partial(_read, read=_kept), (UnhealthyError,), sound=False),
    Target("keeper-file", of("json", _json(_HELD["by"])), _lock_file),
    Target("packet", _packets, partial(_read, read=_capture)),
    Target("packet-error", of("binary", struct.pack("=IBBBxII", 113, 2, 11, 0, 0, 0) + bytes(16)),
           partial(_read, read=_error_queue)),
)  # fmt: skip


@contextmanager
def _audited_one(folder, place):
    """As `_audited`, where one of the three outputs is the input."""
    with _audited(folder) as consume:
        outputs = [_LLDP, _CONFIG, _PORTSTAT]

        def one(data):
            consume(_NEXT.join((*outputs[:place], data, *outputs[place + 1 :])))

        yield one
