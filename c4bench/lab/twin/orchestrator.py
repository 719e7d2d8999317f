"""The process that makes a switch of the lab do what CONFIG_DB says, and fills the other databases.

It follows CONFIG_DB by redis's notes of changed keys, as SONiC's own daemons do, so whatever writes there takes effect.
It also runs the server of the commands.
"""

import logging
import os
import selectors
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from c4bench.errors import UnhealthyError
from c4bench.lab.guest import fabric, flow_control
from c4bench.lab.guest.routing import link_states
from c4bench.lab.topology import EcnMarking
from c4bench.lab.twin import commands, config_db, counters, factory
from c4bench.lab.twin.factory import Config
from c4bench.lab.twin.forwarding import PortState, changes, port_state, status_of_rules
from c4bench.lab.twin.ports import Layout
from c4bench.lab.twin.redis import SOCKET, Redis, set_row

_logger = logging.getLogger(__name__)

_SERVER = (
    *("redis-server", "--port", "0", "--unixsocket", SOCKET, "--unixsocketperm", "770", "--save", ""),
    # Once a second is the least often that it looks after itself.
    *("--hz", "1", "--dynamic-hz", "no", "--activerehashing", "no", "--appendonly", "no", "--dir", "/run/redis"),
    *("--notify-keyspace-events", "AKE", "--loglevel", "warning", "--databases", "16"),
)
_TRY_S = 0.005
_START_S = 5.0
_RTMGRP_LINK = 1
_TICK_S = 1.0  # between readings of the ports' counters, as in SONiC
_SLOW_TICKS = 10  # readings of rules' counters


def start_server() -> None:
    """Start the switch's redis-server, and wait until it answers. Raises OSError."""
    subprocess.Popen(_SERVER, close_fds=True)
    ends_s = time.monotonic() + _START_S
    while time.monotonic() < ends_s:
        with suppress(OSError):
            Redis("CONFIG_DB").close()
            return
        time.sleep(_TRY_S)
    raise TimeoutError(f"redis-server did not start within {_START_S:g} s")


class Orchestrator:
    """One switch; `dscp` is that of the lab's NICs, `ecn` how switches of the topology mark."""

    def __init__(self, layout: Layout, dscp: int, ecn: EcnMarking | None) -> None:
        self._layout, self._dscp, self._ecn = layout, dscp, ecn
        self._states: dict[str, PortState] = {}
        self._rules: dict[str, bool] = {}
        self._config_db, self._appl_db = Redis("CONFIG_DB"), Redis("APPL_DB")
        self._state_db, self._counters_db = Redis("STATE_DB"), Redis("COUNTERS_DB")
        self._counters = counters.PortCounters(layout)
        self._selector = selectors.DefaultSelector()
        self._due_s = time.monotonic() + _TICK_S  # counters begin when all neighbours have booted
        self._ticks = 0

    def start(self) -> None:
        """Load the saved or the first configuration, apply it, and fill the databases."""
        saved = config_db.SAVED.exists()
        first = config_db.read(config_db.SAVED) if saved else factory.configuration(self._layout, self._ecn)
        config_db.add(self._config_db, first)
        self._name_counters()
        self._watch_links()
        self._apply()
        for port in self._layout.ports:
            self._note_link(port.name, up=_is_running(port.name))

    def run(self) -> None:
        """Follow CONFIG_DB, links, commands and the clock. Never returns."""
        notes = Redis("CONFIG_DB")
        notes.call("PSUBSCRIBE", "__keyspace@4__:*")
        self._selector.register(notes, selectors.EVENT_READ, lambda: self._follow(notes))
        listener = commands.listener()
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._serve(listener))
        while True:
            for key, _ in self._selector.select(max(0.0, self._due_s - time.monotonic())):
                handler: Callable[[], None] = key.data
                handler()
            if time.monotonic() >= self._due_s:
                self._tick()

    def _serve(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            commands.serve(connection, self._layout, self._ecn)

    def _follow(self, notes: Redis) -> None:
        """Apply CONFIG_DB once for all notes that have arrived."""
        notes.drain()
        self._apply()

    def _apply(self) -> None:
        config: Config = self._config_db.tables()
        for port in self._layout.ports:
            before = self._states.get(port.name)
            try:
                after = port_state(config, port, self._dscp)
                for tool, lines in changes(port, before, after).items():
                    fabric.batch(tool, "", lines)
                known = before.pauses if before else ()
                flow_control.write(line for line in after.pauses if line not in known)
            except (UnhealthyError, OSError, ValueError) as error:
                _logger.error("%s: %s: cannot be set as CONFIG_DB says: %s", self._layout.name, port.name, error)
                continue
            self._states[port.name] = after
            if before != after:
                self._publish_port(port.name, config["PORT"].get(port.name, {}))
        self._publish_rules(config)

    def _publish_port(self, port: str, row: dict[str, str]) -> None:
        self._appl_db.write("PORT_TABLE", port, {**row, "parent_port": port})
        self._state_db.write("PORT_TABLE", port, {"state": "ok", **{key: row[key] for key in ("mtu",) if key in row}})

    def _publish_rules(self, config: Config) -> None:
        status = status_of_rules(config)
        if status == self._rules:
            return
        for gone in self._rules.keys() - status.keys():
            self._state_db.remove("ACL_RULE_TABLE", gone)
            self._counters_db.call("DEL", f"COUNTERS:{gone.replace('|', ':')}")
        for key, active in status.items():
            self._state_db.write("ACL_RULE_TABLE", key, {"status": "Active" if active else "Inactive"})
        self._rules = status

    def _watch_links(self) -> None:
        listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        listener.bind((0, _RTMGRP_LINK))
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._read_links(listener))

    def _read_links(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError):
            while True:
                for interface, up in link_states(listener.recv(1 << 16)):
                    if interface in self._states:
                        self._note_link(interface, up=up)

    def _note_link(self, port: str, *, up: bool) -> None:
        state = "up" if up else "down"
        self._appl_db.write("PORT_TABLE", port, {"oper_status": state})
        self._state_db.write("PORT_TABLE", port, {"netdev_oper_status": state})

    def _name_counters(self) -> None:
        ports = self._layout.ports
        names = {port.name: counters.port_oid(port.index) for port in ports}
        queues = {f"{port.name}:{queue}": counters.queue_oid(port.index, queue) for port in ports for queue in range(8)}
        self._counters_db.together(
            [set_row("COUNTERS_PORT_NAME_MAP", names), set_row("COUNTERS_QUEUE_NAME_MAP", queues)]
        )

    def _tick(self) -> None:
        now_s = time.monotonic()
        self._due_s = now_s + _TICK_S
        counts, rates = self._counters.read(now_s)
        paused = counters.priority_counts(self._layout)
        rows: list[tuple[object, ...]] = []
        for port in self._layout.ports:
            oid = counters.port_oid(port.index)
            own_pauses = counters.pauses(paused.get(port.name, ()))
            rows.append(set_row(f"COUNTERS:{oid}", {**counts[port.name], **counters.ABSENT, **own_pauses}))
            rows += [
                set_row(f"COUNTERS:{counters.queue_oid(port.index, queue)}", counters.queue(own))
                for queue, own in enumerate(paused.get(port.name, ()))
            ]
            if port.name in rates:
                rows.append(set_row(f"RATES:{oid}", rates[port.name]))
        if self._rules and self._ticks % _SLOW_TICKS == 0:
            matched = counters.rule_counts(self._states)
            for key, (packets, size) in matched.items():
                rows.append(set_row(f"COUNTERS:{key}", {"Packets": packets, "Bytes": size}))
        self._ticks += 1
        self._counters_db.together(rows)
        _reap()


def _is_running(interface: str) -> bool:
    """Whether an interface is up and its cable too."""
    return Path(f"/sys/class/net/{interface}/operstate").read_text().strip() == "up"


def _reap() -> None:
    """Forget the commands that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
