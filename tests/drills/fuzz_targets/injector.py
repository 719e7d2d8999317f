"""What the injector reads as root: requests, its journal, what may be broken, faults, rings, and tools' output."""

import json
import mmap
from contextlib import contextmanager, suppress
from functools import partial

import msgspec
from fuzz_mutations import Corpus, of
from fuzzing import Target

from c4bench.agent import config
from c4bench.collective import ring_layout as layout
from c4bench.collective.ring_layout import CommEntry, ConnName, Owner
from c4bench.collective.ring_reader import read_owner, read_telemetry_file
from c4bench.decoding import from_msgpack
from c4bench.errors import UnhealthyError
from c4bench.inject import __main__ as injector
from c4bench.inject import catalogue, connectx, gpus, interfaces, permitted, protocol, switch_shell
from c4bench.inject.actions import Delete, Plan, Run, SetKnob, Signal
from c4bench.inject.interfaces import InterfaceTarget, join_listings
from c4bench.inject.journal import Entry, Journal, Quarantine, boot
from c4bench.inject.permitted import Permitted, PermittedHost
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest, Lease, TargetKind
from c4bench.model.telemetry import CommRecord, Member
from c4bench.resources import resource
from c4bench.switches import linux, sonic
from c4bench.workload.controls import Controls
from fuzz_targets.evidence import recorded

_NIC = Nic("h0", 0, "rxe0", "eth9", "10.0.0.1", 1e9)
_REQUEST = FaultRequest("nic.down", "h0", _NIC)
_json = msgspec.json.encode


@contextmanager
def _configured(folder, hosts=None):
    """The configuration of an installation is in the folder, with these hosts in `targets.json`."""
    before, permitted.configuration = permitted.configuration, lambda: folder
    if hosts is not None:
        (folder / "targets.json").write_bytes(_json(Permitted(hosts)))
        (folder / "targets.json").chmod(0o644)
    try:
        yield
    finally:
        permitted.configuration = before


def _refused(work):
    """What a refusal is on the injector's stdout, which is JSON."""
    try:
        work()
    except injector.C4Error as error:
        protocol.encode(protocol.Refused(str(error), error.exit_code))
        raise


@contextmanager
def _requests(folder):
    known = catalogue.load()
    with _configured(folder, {"h0": PermittedHost(disruptive=True, nics=(_NIC,))}):

        def resolve(text):
            spec, request = known.resolve(injector._request(text))
            protocol.encode(protocol.Refused(request.where, 0))
            assert spec is not None

        yield lambda data: _refused(lambda: resolve(data.decode("utf-8", "surrogateescape")))


@contextmanager
def _targets(folder):
    with _configured(folder):
        path = folder / "targets.json"

        def consume(data):
            path.write_bytes(data)
            path.chmod(0o644)
            _refused(lambda: permitted.restrict(_REQUEST, permitted.load()))

        yield consume


@contextmanager
def _journal(folder):
    """Entries as `status`, `heal` and the watchdog read them; nothing that they list is done."""
    root = folder / "state"
    (root / "faults").mkdir(parents=True)
    records = Journal(root)

    def consume(data):
        for place in (root / "faults/x.json", root / "quarantine.json"):
            place.write_bytes(data)
        assert len(records.entries()) + (records.quarantine is not None) + len(records.damaged()) == 2
        for entry in records.entries():
            shown = [str(action) for action in (*entry.plan.apply, *entry.revert)]
            _json((entry.lease, shown, entry.lease.request.where))
            records.state_before(dict(entry.found))
        protocol.encode(protocol.Refused("; ".join(records.damaged()), 3))
        _refused(records.refuse_quarantined)

    yield consume


def _journal_corpus():
    lease = Lease("nic.down-1-1", _REQUEST, 1.0, 2.0)
    revert = (Delete("/x"), Run(("ip", "link", "set", "eth9", "up"), "/run/netns/h0"), Signal(7, 8, 9, 18))
    plan = Plan(("link",), (SetKnob("/x", "exit_code", 1.0),), revert)
    entry = Entry(lease, TargetKind.NIC, plan, {"a": "b"}, 1.0, boot(), {"/run/netns/h0": 7})
    quarantine = Quarantine("nic.down-1-1", TargetKind.NIC, _REQUEST, {"a": "b"}, ("+ x",), 1.0)
    return Corpus("json", (_json(entry), _json(quarantine)))


@contextmanager
def _replies(_folder):
    yield lambda data: protocol.decode(data.decode("utf-8", "surrogateescape"))


def _reply_corpus():
    replies = (protocol.Refused("no", 2), protocol.Planned(("a",), ("b",)),
               protocol.Healed("nic.down-1-1", "asked", "lease", 1.0, True, {"x": 1.0}, (), ()))  # fmt: skip
    return Corpus("json", tuple(map(_json, replies)))


@contextmanager
def _file(folder, name, read):
    path = folder / name

    def consume(data):
        path.write_bytes(data)
        read(path)

    yield consume


# Where a rank's telemetry file has a record of each sort: the first of its table.
_SLOTS = {
    "owner": (layout.HEADER_BYTES, layout.PROCESS_BYTES),
    "comm": (layout.COMMS_AT, layout.COMM_BYTES),
    "op": (layout.OPS_AT, layout.OP_BYTES),
    "send": (layout.CONN_NAMES_AT, layout.CONN_NAME_BYTES),
    "conn": (layout.CONNS_AT, layout.CONN_BYTES),
    "receive": (layout.ARRIVAL_NAMES_AT, layout.CONN_NAME_BYTES),
    "arrival": (layout.ARRIVALS_AT, layout.ARRIVAL_BYTES),
}


@contextmanager
def _rings(folder):
    """A rank's telemetry file whose records have right checksums, whatever is in them."""
    path = folder / "rank.ring"

    def consume(data):
        given = from_msgpack(data, dict[str, msgspec.Raw])
        with path.open("w+b") as file:
            file.truncate(layout.FILE_BYTES)
            with mmap.mmap(file.fileno(), layout.FILE_BYTES) as memory, memoryview(memory) as view:
                memory[: layout.HEADER.size] = layout.HEADER.pack(layout.MAGIC, *layout.SIZES)
                for name, raw in given.items():
                    payload = _payload(bytes(raw))
                    if name == "header":
                        memory[: len(payload)] = payload
                    elif name in _SLOTS and len(payload) < _SLOTS[name][1] - 16:
                        layout.Slot(view, *_SLOTS[name]).write(payload)
            read_owner(path, file.fileno())
        read_telemetry_file(path, 5.0)

    yield consume


def _payload(raw):
    """The bytes of a record: what bytes have as they are, anything else encoded."""
    return msgspec.msgpack.decode(raw) if raw[:1] in {b"\xc4", b"\xc5", b"\xc6"} else raw


def _ring():
    record = CommRecord("job:data", "job", (Member(0, "h0", ("h0/0",), 0), Member(1, "h1", ("h1/0",), 1)))
    operation = layout.OP.pack(3, 64, 10**9, 10**9, 0, layout.names("all_reduce", "ring", "float32")) + b"\x02"
    counts = len(layout.CONN.unpack(bytes(layout.CONN.size))) - 12
    parts = {
        "owner": Owner("job", 0, 7),
        "comm": CommEntry(0, record),
        "op": operation,
        "send": ConnName(0, 1, "h0/0", "h1/0", 7),
        "conn": layout.CONN.pack(3, 64, 1, 2, 3, 4, 5, 1, 0, 49152, 3, 6, *[0] * counts),
        "receive": ConnName(0, 1, "h0/0", "h1/0", 7),
        "arrival": layout.TALLY.pack(*[3] * (layout.TALLY.size // 8)),
    }
    return Corpus("msgpack", (msgspec.msgpack.encode(parts), msgspec.msgpack.encode({"header": bytes(64)} | parts)))


@contextmanager
def _listing(_folder):
    """What `ip` and `tc` print, as an interface's state."""

    def consume(data):
        given = data.decode("utf-8", "surrogateescape").split("\x1e")
        printed = dict(zip(("ip -json address", "tc -raw -json", "ip -batch -"), [*given, "", ""], strict=False))
        before, interfaces.run = interfaces.run, lambda argv, *_: printed.get(" ".join(argv[:3]), "[]")
        try:
            target = InterfaceTarget(_NIC, 7, interfaces.listing(_NIC))
            join_listings([target])
            target.shaper(), target.delay(), target.multipath(), target.addresses()
            assert target.mtu_bytes is not None
            assert target.neighbour is not None
        finally:
            interfaces.run = before

    yield consume


def _listing_corpus():
    addresses = [{"family": "inet", "scope": "global", "local": "10.1.1.1"}]
    address = json.dumps([{"ifname": "eth9", "mtu": 4200, "addr_info": addresses}])
    options = {"rate": 1250000000, "burst_raw": "0x4e20", "limit": 3000000}
    tbf = {"kind": "tbf", "handle": "8001:", "root": True, "options": options}
    netem = {"kind": "netem", "handle": "2:", "parent": "8001:1", "options": {"limit": 1000}}
    texts = (
        "10.1.1.254 lladdr 02:c4:01:01:00:fe PERMANENT\ndefault via 10.1.1.254 dev eth9 table 1101\n"
        "10.9.0.0/24 proto static\n\tnexthop via 10.1.1.254 dev eth9 weight 1\n"
        "\tnexthop via 10.2.1.254 dev h5n1 weight 1 dead\nfd10::/64 via fd00::fe dev eth9 metric 1024 pref medium\n"
    )
    return Corpus("text", ("\x1e".join((address, json.dumps([tbf, netem]), texts)).encode(),))


def _sonic(**printed):
    """Every change of SONiC for a port, after what the switch has printed."""
    outputs = {
        "configuration": _DATABASE.decode(),
        "status": _STATUS.decode(),
        "tools": "/usr/bin/redis-cli",
        "neighbours": "",
    }
    facts = sonic.parse(outputs | printed)
    sonic.listing(facts, None)
    _every(sonic.SYSTEM.changes.values(), facts)


def _linux(**printed):
    """A port's state, after what the switch has printed."""
    outputs = dict.fromkeys(("filters", "neighbours", "systems"), "")
    outputs |= {"addresses": _LINKS.decode(), "qdiscs": "[]", "links": "[]", "routes": _ROUTES.decode()}
    facts = linux.parse(outputs | printed)
    linux.listing(facts, None)
    linux.default_port(facts)


def _every(changes, facts):
    values = {"fraction": 0.5, "direction": "tx", "period_s": 1.0, "duty": 0.5, "count": 2.0, "mtu_bytes": 1500.0}
    values |= {"priority": 3.0, "dscp": 26.0, "class": 1.0, "factor": 10.0}
    for change in changes:
        with suppress(UnhealthyError):
            change(facts, FaultRequest("link.down", "leaf0", port="Ethernet0", parameters=values))


def _switch_answer(text):
    """What a switch answered to a script within a second."""
    switch_shell._answer("c4", text, switch_shell.Span(0.0, 1.0))


@contextmanager
def _text(_folder, read):
    yield lambda data: read(data.decode("utf-8", "surrogateescape"))


def _printed(*texts):
    return of("text", *texts)


_GPUS = b"0, 400.00, 100.00, 400.00, 400.00, 1410, 1980\n1, 400.00, 100.00, 400.00, 400.00, 345, 1980\n"
_XID = b"#Entity   XIDER\nID\nGPU 0     79\nGPU 0     N/A\n"
_ANSWER = b"Welcome\nc4 section a\nx\nc4 code 0\nc4 boot 12\nc4 uptime_ms 77\nc4 refused it is full\n"
_DATABASE = _json(
    {
        "PORT": {"Ethernet0": {"admin_status": "up", "mtu": "9100", "speed": "100000"}},
        "INTERFACE": {"Ethernet0|10.0.0.0/31": {}},
        "BGP_NEIGHBOR": {"10.0.0.1": {"local_addr": "10.0.0.0"}},
        "PORT_QOS_MAP": {"Ethernet0": {"dscp_to_tc_map": "AZURE", "pfc_enable": "3,4", "scheduler": "s"}},
        "DSCP_TO_TC_MAP": {"AZURE": {"26": "3"}},
        "SCHEDULER": {"s": {"pir": "1250000"}},
        "QUEUE": {"Ethernet0|3-4": {"wred_profile": "W"}},
        "WRED_PROFILE": {"W": {"ecn": "ecn_all", "green_min_threshold": "1048576", "green_max_threshold": "2097152"}},
        "ACL_TABLE": {"A": {"ports": ["Ethernet0"], "stage": "ingress", "type": "L3"}},
        "ACL_RULE": {"A|R": {"PRIORITY": "1"}},
        "PFC_WD": {"Ethernet0": {"action": "drop"}},
    }
)
_LINKS = _json([{"ifname": "up0", "ifindex": 3, "link_type": "ether", "mtu": 9000, "flags": ["UP"], "addr_info": []}])
_ROUTES = b"default via 10.0.0.9 dev up0 \n10.9.0.0/24 \n\tnexthop via 10.8.0.2 dev up0 weight 1 \n"
_STATUS = b"""\
  Interface    Lanes    Speed    MTU    Alias    Oper    Admin
-----------  -------  -------  -----  -------  ------  -------
  Ethernet0  0,1,2,3     100G   9100    etp1       up       up
"""
_ETHTOOL = b"""\
Settings for eth9:
\tSupported link modes:   25000baseCR/Full 100000baseCR4/Full
\t                        50000baseCR2/Full
\tAdvertised link modes:  100000baseCR4/Full
\tSpeed: 100000Mb/s
\tAuto-negotiation: on
"""


_FEC = b"""\
FEC parameters for eth9:
Supported/Configured FEC encodings: Auto RS
Active FEC encoding: RS
"""
_DCB = b"""{"dscp_prio":[[26,3],[0,0]]}"""
_MLXLINK = b"""\
State                              : Active
Enabled Link Speed (Ext.)          : 0x000007f2 (100G_2X,100G_4X)
"""
_MLXREG = b"""\
Field Name                                     | Data
======================================================
min_ack_timeout_limit_disabled_field_select    | 0x00000001
min_ack_timeout_limit_disabled                 | 0x00000000
"""


def _mlxlink(text):
    connectx.port_state(text)
    connectx.enabled_speeds(text)


_AGENT = b"""\
{name: h0, master: 'm:1', trust: t, ras: 'localhost:28028',
  nics: [{host: h0, index: 0, device: rxe0, netdev: eth9, address: 10.0.0.1, rate_bps: 1.0e+9}]}
"""
_MAY = PermittedHost(disruptive=True, nics=(_NIC,))
TARGETS = (
    Target("inject-request", of("json", _json(_REQUEST)), _requests),
    Target("inject-targets", of("json", _json(Permitted({"h0": _MAY}))), _targets),
    Target("inject-journal", _journal_corpus, _journal, sound=False),
    Target("inject-reply", _reply_corpus, _replies),
    Target("inject-fault", of("yaml", resource("faults", "nic.loss.yml").read_bytes()),
           partial(_file, name="nic.loss.yml", read=catalogue.read)),
    Target("inject-controls", of("binary", b"c4knobs3" + bytes(40)),
           partial(_file, name="rank.controls", read=lambda path: Controls.open(path).read("exit_code"))),
    Target("ring", _ring, _rings, sound=False),
    Target("inject-listing", _listing_corpus, _listing),
    Target("inject-gpus", _printed(_GPUS), partial(_text, read=gpus.parse)),
    Target("inject-xid", _printed(_XID), partial(_text, read=gpus.parse_xid)),
    Target("inject-sonic-status", _printed(_STATUS), partial(_text, read=lambda text: _sonic(status=text))),
    Target("inject-sonic-tables", of("json", _DATABASE), partial(_text, read=lambda text: _sonic(configuration=text))),
    Target("inject-linux-addresses", of("json", _LINKS), partial(_text, read=lambda text: _linux(addresses=text))),
    Target("inject-linux-routes", _printed(_ROUTES), partial(_text, read=lambda text: _linux(routes=text))),
    Target("inject-switch-answer", _printed(_ANSWER), partial(_text, read=_switch_answer)),
    Target("inject-ethtool", _printed(_ETHTOOL), partial(_text, read=connectx.parse_link)),
    Target("inject-fec", _printed(_FEC), partial(_text, read=connectx.parse_fec)),
    Target("inject-mlnx-qos", of("text", *recorded("mlnx_qos.txt")), partial(_text, read=connectx.parse_qos),
           sound=False),
    Target("inject-dcb", _printed(_DCB), partial(_text, read=connectx.parse_dcb_dscp)),
    Target("inject-mlxlink", _printed(_MLXLINK), partial(_text, read=_mlxlink)),
    Target("inject-mlxreg", _printed(_MLXREG), partial(_text, read=connectx.parse_register)),
    Target("agent-config", of("yaml", _AGENT),
           partial(_file, name="agent.yml", read=config.load)),
)  # fmt: skip
