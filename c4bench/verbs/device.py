"""An opened RDMA device: its port, its GIDs, its memory, its completions."""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError

from c4bench.model.fabric import Nic
from c4bench.verbs import addressing, dmabuf
from c4bench.verbs.addressing import Gid, PortStatus
from c4bench.verbs.endpoint import RECEIVE, Endpoint
from c4bench.verbs.enums import ENUMS, names
from c4bench.verbs.errors import VerbsError, verbs
from c4bench.verbs.path_control import PathControl
from c4bench.verbs.path_controls import choose
from c4bench.verbs.transport import Completion, PortEvent, Remote, TransportProfile

STATUSES = {value: name for value, name in names("IBV_WC_").items() if name.endswith("_ERR")}
ACCESS = ENUMS.IBV_ACCESS_LOCAL_WRITE | ENUMS.IBV_ACCESS_REMOTE_WRITE | ENUMS.IBV_ACCESS_REMOTE_READ
LINK_LAYERS = {
    int(ENUMS.IBV_LINK_LAYER_ETHERNET): addressing.ETHERNET,
    int(ENUMS.IBV_LINK_LAYER_INFINIBAND): addressing.INFINIBAND,
}
GID_KINDS = {
    int(ENUMS.IBV_GID_TYPE_IB): addressing.IB,
    int(ENUMS.IBV_GID_TYPE_ROCE_V1): addressing.ROCE_V1,
    int(ENUMS.IBV_GID_TYPE_ROCE_V2): addressing.ROCE_V2,
}
PORT_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
_POLL_BATCH = 64
_ANCHOR_BYTES = 64
_opening = threading.Lock()


def _event_fds() -> set[int]:
    fds = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if "[infinibandevent]" in str(entry.readlink()):
                fds.add(int(entry.name))
    return fds


class Device:
    """The device of a NIC, opened for one user: protection domain, one completion channel and one completion queue.

    All its connections send in the NIC's traffic class and service level. `address` is the IP address of its netdev; on
    InfiniBand it may be the IPoIB one. `paths` is chosen by trying when it is first needed, unless given. Not
    thread-safe, as pyverbs is not. Closing releases QPs and memory first and the context last, and is safe after any
    error. Raises VerbsError where a verb fails.
    """

    def __init__(
        self,
        nic: Nic,
        *,
        port: int = 1,
        depth: int = 8192,
        paths: PathControl | None = None,
    ) -> None:
        self.nic = nic
        self.name, self.address = nic.device, nic.address
        self.port_number = port
        self._paths = paths
        with ExitStack() as undo, verbs(self.name, "opening it"):
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
            opened_object = make()
            opened = _event_fds() - before
        if len(opened) != 1:
            raise VerbsError(
                f"{self.name}: {len(opened)} event descriptors appeared where one was expected; "
                "open RDMA devices from one thread at a time",
                device=self.name,
            )
        return opened_object, opened.pop()

    @property
    def event_fds(self) -> tuple[int, int]:
        """Non-blocking descriptors, for poll or an event loop: completion channel, asynchronous events."""
        return self._channel_fd, self._async_fd

    @property
    def paths(self) -> PathControl:
        """How this device's connections choose their paths."""
        if self._paths is None:
            self._paths = choose(self)
        return self._paths

    @property
    def active(self) -> bool:
        """See Port. A device that does not answer has no link."""
        try:
            return self.status().state == "ACTIVE"
        except VerbsError:
            return False

    @property
    def vendor(self) -> int:
        """The vendor identity of the device."""
        with verbs(self.name, "querying the device"):
            return int(self.context.query_device().vendor_id)

    def status(self) -> PortStatus:
        """The port now."""
        with verbs(self.name, "querying the port"):
            port = self.context.query_port(self.port_number)
        return PortStatus(
            state=PORT_STATES[port.state],
            active_mtu_bytes=_mtu_bytes(port),
            link_layer=LINK_LAYERS.get(port.link_layer, "unknown"),
            lid=port.lid,
            lmc=port.lmc,
        )

    def gids(self) -> list[Gid]:
        """The GID table of the port now."""
        with verbs(self.name, "reading the GID table"):
            # The kernel refuses to fill a table that is too short for all the ports together.
            ports = self.context.query_device().phys_port_cnt
            table = self.context.query_gid_table(self.context.query_port(self.port_number).gid_tbl_len * ports)
        return [
            Gid(entry.gid_index, entry.gid_str(), GID_KINDS[entry.gid_type])
            for entry in table
            if entry.port_num == self.port_number
        ]

    def resolve_gid(self) -> Gid:
        """The GID that carries this device's address.

        Looked up each time: the index may differ between ports and after a flap. Raises VerbsError where there is none.
        """
        gid = addressing.pick_gid(self.gids(), self.status().link_layer, self.address)
        if gid is None:
            raise VerbsError(
                f"{self.name}: no RoCE v2 GID for {self.address}; give its netdev that address", device=self.name
            )
        return gid

    def here(self) -> Remote:
        """See Port."""
        status = self.status()
        return Remote(self.resolve_gid().text, 0, lid=status.lid, mtu_bytes=status.active_mtu_bytes)

    def register(self, address: int, length: int) -> Any:  # noqa: ANN401  (a pyverbs MR)
        """Register `length` bytes at `address`, which must outlive the registration, for local and remote access."""
        with verbs(self.name, f"registering {length} bytes"):
            return MR(self.pd, length, ACCESS, address=address)

    def register_dmabuf(self, fd: int, offset: int, length: int) -> Any:  # noqa: ANN401  (a pyverbs MR)
        """See Port. Work requests address the memory from `offset` on."""
        return dmabuf.register(self, ACCESS, fd, offset, length)

    def connection(self, profile: TransportProfile, sends: int, receives: int) -> Endpoint:
        """A new RC endpoint with queues of those depths."""
        return Endpoint(self, profile, sends=sends, receives=receives)

    def completions(self, *, arm: bool = True) -> Sequence[Completion]:
        """See Port."""
        if arm:
            self._rearm()
        completions: list[Completion] = []
        while True:
            count, batch = self.cq.poll(_POLL_BATCH)
            completions.extend(map(_completion, batch))
            if count < _POLL_BATCH:
                return completions

    def _rearm(self) -> None:
        try:
            self._channel.get_cq_event(self.cq)
        except PyverbsRDMAError:
            # No notification: the queue is still armed from last time.
            return
        self.cq.ack_events(1)
        self.cq.req_notify()

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


def _completion(wc: Any) -> Completion:  # noqa: ANN401  (a pyverbs WC)
    # Of a work request that failed, opcode and immediate are undefined (ibv_poll_cq(3)).
    if wc.wr_id == RECEIVE:
        return Completion(wc.qp_num, 0, _status(wc.status), received=True, immediate=0 if wc.status else wc.imm_data)
    return Completion(wc.qp_num, wc.wr_id, _status(wc.status), received=False, immediate=0)


def _status(code: int) -> str:
    return STATUSES.get(code, str(code)) if code else ""


def _mtu_bytes(port: Any) -> int:  # noqa: ANN401  (a pyverbs PortAttr)
    return 128 << int(port.active_mtu)


def active_mtu_bytes(name: str, port: int) -> int:
    """The largest path MTU of a port now. Raises VerbsError."""
    with _opening, verbs(name, "querying the port"), Context(name=name) as context:
        return _mtu_bytes(context.query_port(port))


KINDS = names("IBV_EVENT_")


def drain_events(context: Any, device: str) -> list[PortEvent]:  # noqa: ANN401  (a pyverbs Context)
    """Read and acknowledge every pending event. The context's descriptor must be non-blocking.

    A port that comes up may report that twice. Only the NIC's own context gets the event, not the far end.
    """
    events: list[PortEvent] = []
    while True:
        try:
            event = context.get_async_event()
        except PyverbsRDMAError:
            return events
        events.append(PortEvent(device, KINDS.get(int(event.event_type), str(event.event_type))))
        # An event that is not acknowledged blocks the destruction of what it belongs to.
        event.ack()
