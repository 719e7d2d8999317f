"""An opened RDMA device: its port, its GIDs, its memory, its completions."""

import ipaddress
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError

from c4bench.verbs.endpoint import Endpoint
from c4bench.verbs.enums import ENUMS, names
from c4bench.verbs.errors import VerbsError, verbs
from c4bench.verbs.events import drain_events
from c4bench.verbs.path import FlowLabel, PathControl
from c4bench.verbs.transport import Completion, PortEvent, TransportProfile

STATUSES = {value: name for value, name in names("IBV_WC_").items() if name.endswith("_ERR")}
ACCESS = ENUMS.IBV_ACCESS_LOCAL_WRITE | ENUMS.IBV_ACCESS_REMOTE_WRITE | ENUMS.IBV_ACCESS_REMOTE_READ
PORT_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
_POLL_BATCH = 64
_ANCHOR_BYTES = 64
_opening = threading.Lock()


class PortStatus(NamedTuple):
    """`state` is the verbs name (`ACTIVE`, `DOWN`), `active_mtu_bytes` the largest path MTU now."""

    state: str
    active_mtu_bytes: int
    link_layer: str


class Gid(NamedTuple):
    """An entry of the GID table."""

    table_index: int
    text: str


def _event_fds() -> set[int]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if "[infinibandevent]" in str(entry.readlink()):
                found.add(int(entry.name))
    return found


class Device:
    """A device opened for one user: protection domain, one completion channel and one completion queue.

    Not thread-safe, as pyverbs is not. Closing releases QPs and memory first and the context last, and is safe after
    any error. Raises VerbsError where a verb fails or the device has no RoCE v2 GID for `address`.
    """

    def __init__(
        self, name: str, address: str, *, port: int = 1, depth: int = 8192, paths: PathControl | None = None
    ) -> None:
        self.name = name
        self.address = address
        self.port_number = port
        self.paths: PathControl = paths or FlowLabel()
        with ExitStack() as undo, verbs(name, "opening it"):
            self._open(undo, depth)
            self._close = undo.pop_all()

    def _open(self, undo: ExitStack, depth: int) -> None:
        self.context, self._async_fd = self._with_event_fd(lambda: Context(name=self.name))
        undo.callback(self.context.close)
        self._channel, self._channel_fd = self._with_event_fd(lambda: CompChannel(self.context))
        undo.callback(self._channel.close)
        limit = self.context.query_device().max_cqe
        self.cq: Any = CQ(self.context, min(depth, limit), None, self._channel, 0)
        undo.callback(self.cq.close)
        self.pd: Any = PD(self.context)
        undo.callback(self.pd.close)
        self.anchor: Any = MR(self.pd, _ANCHOR_BYTES, ACCESS)
        for fd in self.event_fds:
            os.set_blocking(fd, False)
        self.cq.req_notify()

    def _with_event_fd(self, make: Callable[[], Any]) -> tuple[Any, int]:
        """Call `make` and find the one event descriptor it opened.

        pyverbs does not show these descriptors, and its `Context.context` property crashes the interpreter; the
        kernel's own list of this process's descriptors is the reading that cannot go wrong.
        """
        with _opening:
            before = _event_fds()
            made = make()
            opened = _event_fds() - before
        if len(opened) != 1:
            raise VerbsError(
                f"{self.name}: {len(opened)} event descriptors appeared where one was expected; "
                "open RDMA devices from one thread at a time",
                device=self.name,
            )
        return made, opened.pop()

    @property
    def event_fds(self) -> tuple[int, int]:
        """Non-blocking descriptors, for poll or an event loop: completion channel, asynchronous events."""
        return self._channel_fd, self._async_fd

    def status(self) -> PortStatus:
        """The port's state now."""
        with verbs(self.name, "querying the port"):
            port = self.context.query_port(self.port_number)
        layers = {int(ENUMS.IBV_LINK_LAYER_ETHERNET): "Ethernet", int(ENUMS.IBV_LINK_LAYER_INFINIBAND): "InfiniBand"}
        return PortStatus(PORT_STATES[port.state], 128 << port.active_mtu, layers.get(port.link_layer, "unknown"))

    def resolve_gid(self) -> Gid:
        """The RoCE v2 GID that carries this device's address.

        Looked up each time: the index may differ between ports and after a flap.
        """
        wanted = _as_gid(self.address)
        with verbs(self.name, "reading the GID table"):
            length = self.context.query_port(self.port_number).gid_tbl_len
            table = self.context.query_gid_table(length)
        for entry in table:
            if entry.port_num == self.port_number and entry.gid_type == ENUMS.IBV_GID_TYPE_ROCE_V2:
                text = entry.gid_str()
                if ipaddress.IPv6Address(text) == wanted:
                    return Gid(entry.gid_index, text)
        raise VerbsError(
            f"{self.name}: no RoCE v2 GID for {self.address}; give its netdev that address", device=self.name
        )

    @property
    def gid(self) -> str:
        """The RoCE v2 GID as text, for the far end."""
        return self.resolve_gid().text

    def register(self, address: int, length: int) -> Any:  # noqa: ANN401  (a pyverbs MR)
        """Register `length` bytes at `address`, which must outlive the registration, for local and remote access."""
        with verbs(self.name, f"registering {length} bytes"):
            return MR(self.pd, length, ACCESS, address=address)

    def connection(self, profile: TransportProfile, sends: int, receives: int) -> Endpoint:
        """A new RC endpoint with queues of those depths."""
        return Endpoint(self, profile, sends=sends, receives=receives)

    def completions(self) -> Sequence[Completion]:
        """Every completion there is. Arms the channel before polling, so that none can be missed."""
        try:
            self._channel.get_cq_event(self.cq)
        except PyverbsRDMAError:
            pass
        else:
            self.cq.ack_events(1)
            self.cq.req_notify()
        found: list[Completion] = []
        while True:
            count, batch = self.cq.poll(_POLL_BATCH)
            found.extend(map(_completion, batch))
            if count < _POLL_BATCH:
                return found

    def events(self) -> Sequence[PortEvent]:
        """Every pending asynchronous event."""
        return drain_events(self.context, self.name)

    def close(self) -> None:
        """Release everything. May be called again."""
        with verbs(self.name, "closing it"):
            self._close.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _as_gid(address: str) -> ipaddress.IPv6Address:
    parsed = ipaddress.ip_address(address)
    return ipaddress.IPv6Address(f"::ffff:{parsed}") if parsed.version == 4 else ipaddress.IPv6Address(parsed)


def _completion(wc: Any) -> Completion:  # noqa: ANN401  (a pyverbs WC)
    received = bool(wc.opcode & ENUMS.IBV_WC_RECV)
    status = STATUSES[wc.status] if wc.status else ""
    return Completion(wc.qp_num, wc.wr_id, status, received, wc.imm_data if received and not status else 0)
