"""An opened RDMA device: its port, its GIDs, its memory, its completions, and its connections."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from c4bench.model.fabric import Nic
from c4bench.verbs import addressing
from c4bench.verbs.addressing import DEFAULT_PATH, Gid, PathAttributes, PortStatus
from c4bench.verbs.errors import VerbsError, failure, verbs
from c4bench.verbs.path_control import OpenDevice, PathControl, readdress_refusal
from c4bench.verbs.path_controls import choose
from c4bench.verbs.transport import Completion, PortEvent, Remote, TransportProfile


def _load_enums() -> Any:  # noqa: ANN401  (a module without type information)
    """The verbs constants, with any version of pyverbs."""
    try:
        from pyverbs import libibverbs_enums as constants  # noqa: PLC0415  (rdma-core 59 and later)
    except ImportError:
        from pyverbs import enums as constants  # noqa: PLC0415  (rdma-core 58 and earlier)
    return constants


ENUMS = _load_enums()


def names(prefix: str) -> dict[int, str]:
    """The names, without the prefix, of all constants that start with it, by value: `names("IBV_QPS_")[3] == "RTS"`."""
    return {int(value): key[len(prefix) :] for key, value in vars(ENUMS).items() if key.startswith(prefix)}


STATES = names("IBV_QPS_")
# The work request identity of every receive.
RECEIVE = (1 << 64) - 1
# How long a send queue without outstanding work may take to drain, and how often it is asked.
_DRAINED_S = 0.1
_DRAIN_POLL_S = 10e-6
_WRITE = ENUMS.IBV_WR_RDMA_WRITE
_WRITE_WITH_IMMEDIATE = ENUMS.IBV_WR_RDMA_WRITE_WITH_IMM
_READ = ENUMS.IBV_WR_RDMA_READ
_SIGNALED = ENUMS.IBV_SEND_SIGNALED
ACCESS = ENUMS.IBV_ACCESS_LOCAL_WRITE | ENUMS.IBV_ACCESS_REMOTE_WRITE | ENUMS.IBV_ACCESS_REMOTE_READ


class Endpoint:
    """An RC queue pair of a device. Every failing verb raises VerbsError; failures of posted work come as completions.

    With `reliable` false a UC one: nobody acknowledges its packets, and what is lost stays lost.

    `connect` may be called again, after an error or to take another path where `move` is refused: it goes through
    RESET, which drops everything still posted, and the far end must do the same. Completions of what was posted before
    may still come.
    """

    def __init__(
        self, device: OpenDevice, profile: TransportProfile, *, sends: int, receives: int, reliable: bool = True
    ) -> None:
        self.device = device
        self.profile = profile
        self.remote: Remote | None = None
        self.path: PathAttributes = DEFAULT_PATH
        cap = QPCap(max_send_wr=sends, max_recv_wr=receives, max_send_sge=1, max_recv_sge=1)
        kind = ENUMS.IBV_QPT_RC if reliable else ENUMS.IBV_QPT_UC
        with verbs(device.name, "creating a QP"):
            self.raw: Any = QP(device.pd, QPInitAttr(qp_type=kind, scq=device.cq, rcq=device.cq, cap=cap))
        self.qp_num: int = self.raw.qp_num
        # A work request needs at least one SGE in pyverbs; one of length 0 serves every request without bytes.
        self._nothing: tuple[int, int] = device.anchor.buf, device.anchor.lkey
        self._receive = RecvWR(wr_id=RECEIVE, num_sge=1, sg=[SGE(device.anchor.buf, 0, device.anchor.lkey)])
        # A verb has copied what is posted when it returns, so one serves for all; pyverbs never frees what it allocates
        # for one. `sg_list` has it point to the SGE itself instead of a copy.
        self._sge = SGE(device.anchor.buf, 0, device.anchor.lkey)
        self._request = SendWR(num_sge=1, sg=[self._sge])
        self._request.sg_list = self._sge

    @property
    def state(self) -> str:
        """The QP's state now: RESET, INIT, RTR, RTS, SQD, SQE or ERR."""
        return STATES[self._query().qp_state]

    def _query(self) -> Any:  # noqa: ANN401  (a pyverbs QPAttr)
        with verbs(self.device.name, "querying it", self.qp_num):
            attributes, _ = self.raw.query(ENUMS.IBV_QP_STATE)
        return attributes

    @property
    def qps(self) -> tuple[int, int]:
        """The numbers of both ends' QPs. VerbsError before it is connected."""
        return self.qp_num, self._peer().qp

    @property
    def source_port(self) -> int:
        """UDP source port of its packets; 0 before it is connected, and where it is not known."""
        return self.device.paths.source_port(self) if self.remote else 0

    def connect(self, remote: Remote, source_port: int = 0, receives: int = 0) -> None:
        """RESET to RTS towards `remote`, with `receives` receives posted before the first message can come.

        `source_port` is a choice of the device's path control: where that has no UDP source ports, a LAG port or LID
        path bits. ValueError where it is none.
        """
        paths = self.device.paths
        self.connect_by(remote, paths.attributes(source_port), receives)
        paths.after_connect(self, source_port)

    def connect_by(self, remote: Remote, path: PathAttributes = DEFAULT_PATH, receives: int = 0) -> None:
        """Connect with an address vector of one's own."""
        self.remote, self.path = remote, path
        self._modify("to RESET", self._to(ENUMS.IBV_QPS_RESET), ENUMS.IBV_QP_STATE)
        with verbs(self.device.name, "to INIT", self.qp_num):
            self.raw.to_init(self._base())
        for _ in range(receives):
            self.post_receive()
        attributes = self._connected()
        with verbs(self.device.name, f"connecting to QP {remote.qp} at {remote.gid}", self.qp_num):
            self.raw.to_rtr(attributes)
            self.raw.to_rts(attributes)

    def _base(self) -> Any:  # noqa: ANN401  (a pyverbs QPAttr)
        attributes = QPAttr(port_num=self.device.port_number)
        attributes.qp_access_flags = ACCESS
        return attributes

    def _connected(self) -> Any:  # noqa: ANN401  (a pyverbs QPAttr)
        # pyverbs leaves timeout and retries at 0, "wait for ever" and "never", and the hop limit at 1: state them all.
        attributes = self._base()
        attributes.path_mtu = addressing.path_mtu(self.device.status().active_mtu_bytes, self._peer().mtu_bytes)
        attributes.min_rnr_timer = self.profile.min_rnr_timer
        attributes.max_dest_rd_atomic = 1
        attributes.max_rd_atomic = 1
        attributes.dest_qp_num = self._peer().qp
        attributes.ah_attr = self._address()
        attributes.timeout = self.profile.timeout
        attributes.retry_cnt = self.profile.retries
        attributes.rnr_retry = self.profile.rnr_retries
        return attributes

    def _peer(self) -> Remote:
        if self.remote is None:
            raise VerbsError(f"QP {self.qp_num} on {self.device.name} is not connected", device=self.device.name)
        return self.remote

    def _address(self) -> Any:  # noqa: ANN401  (a pyverbs AHAttr)
        layer, own = self.device.status().link_layer, self.device.resolve_gid()
        limit, traffic_class = self.profile.hop_limit, self.profile.traffic_class
        peer = self._peer()
        vector = addressing.address_vector(self.device.nic, layer, own, peer, self.path, limit, traffic_class)
        return address_handle(vector, self.device.port_number)

    @staticmethod
    def _to(state: int) -> Any:  # noqa: ANN401  (a pyverbs QPAttr)
        attributes = QPAttr()
        attributes.qp_state = state
        return attributes

    def _modify(self, doing: str, attributes: Any, mask: int) -> None:  # noqa: ANN401
        with verbs(self.device.name, doing, self.qp_num):
            self.raw.modify(attributes, mask)

    def readdress(self, path: PathAttributes) -> None:
        """Give a live connection another address vector, if the device can; the connection stays as it is if not.

        The caller has reaped every completion first. VerbsError where the send queue does not drain within
        `_DRAINED_S` or the device refuses; `connect` at both ends is then the way.
        """
        if obstacle := self.device.readdress_obstacle:
            raise VerbsError(
                f"QP {self.qp_num} on {self.device.name} cannot take another path while it is connected ({obstacle}), "
                "but when it connects the next time",
                device=self.device.name,
                status=obstacle,
                qp=self.qp_num,
            )
        self.try_readdress(path)

    def try_readdress(self, path: PathAttributes) -> None:
        """SQD, the vector, RTS. Raises as `readdress`."""
        before, self.path = self.path, path
        try:
            address = QPAttr(port_num=self.device.port_number)
            address.ah_attr = self._address()
            self._modify("to SQD", self._to(ENUMS.IBV_QPS_SQD), ENUMS.IBV_QP_STATE)
            self._wait_drained()
            self._modify("changing its path", address, ENUMS.IBV_QP_AV)
        except VerbsError:
            self.path = before
            raise
        finally:
            self._resume()

    def _resume(self) -> None:
        if self.state == "SQD":
            self._modify("back to RTS", self._to(ENUMS.IBV_QPS_RTS), ENUMS.IBV_QP_STATE)

    def _wait_drained(self) -> None:
        """Only a drained send queue may be changed or leave SQD (InfiniBand specification, volume 1, 10.3.1.5)."""
        give_up_s = time.monotonic() + _DRAINED_S
        while self._query().sq_draining:
            if time.monotonic() > give_up_s:
                raise VerbsError(
                    f"QP {self.qp_num} on {self.device.name} did not drain in {_DRAINED_S:g} s",
                    device=self.device.name,
                    qp=self.qp_num,
                )
            time.sleep(_DRAIN_POLL_S)

    def move(self, source_port: int) -> None:
        """Take the path of `source_port` (0: ECMP) from the next message on; nothing may be outstanding."""
        self.device.paths.move(self, source_port)

    def write(
        self,
        local: tuple[int, int],
        remote: tuple[int, int],
        length: int,
        *,
        immediate: int | None = None,
        signaled: bool = True,
        wr_id: int = 0,
    ) -> None:
        """RDMA-write `length` bytes from `local` (address, lkey) to `remote` (address, rkey).

        With `immediate` (32 bits) the far end gets a completion for it and spends one posted receive.
        """
        request = self._request
        request.wr_id = wr_id
        request.send_flags = _SIGNALED if signaled else 0
        if immediate is None:
            request.opcode = _WRITE
        else:
            request.opcode = _WRITE_WITH_IMMEDIATE
            request.imm_data = immediate
        self._post("posting a write", local if length else self._nothing, remote, length)

    def read(self, local: tuple[int, int], remote: tuple[int, int], length: int) -> None:
        """RDMA-read `length` bytes from `remote` (address, rkey) to `local` (address, lkey)."""
        request = self._request
        request.wr_id = 0
        request.send_flags = _SIGNALED
        request.opcode = _READ
        self._post("posting a read", local, remote, length)

    def _post(self, doing: str, local: tuple[int, int], remote: tuple[int, int], length: int) -> None:
        """Post the request with these places in it."""
        sge = self._sge
        sge.addr, sge.lkey = local
        sge.length = length
        self._request.set_wr_rdma(remote[1], remote[0])
        try:
            self.raw.post_send(self._request)
        except PyverbsError as error:
            raise failure(self.device.name, doing, error, self.qp_num) from error

    def fence(self) -> None:
        """Into the error state: nothing more leaves or arrives, and what is posted is flushed. May be called again."""
        self._modify("to ERR", self._to(ENUMS.IBV_QPS_ERR), ENUMS.IBV_QP_STATE)

    def probe(self, wr_id: int = 0) -> None:
        """Write zero bytes: succeeds in a round trip where the peer's QP lives, and errs after the retries if not."""
        self.write((0, 0), (0, 0), 0, wr_id=wr_id)

    def post_receive(self) -> None:
        """Post one receive, for a write with immediate."""
        try:
            self.raw.post_recv(self._receive)
        except PyverbsError as error:
            raise failure(self.device.name, "posting a receive", error, self.qp_num) from error

    def close(self) -> None:
        """Destroy the QP. May be called again."""
        with verbs(self.device.name, "destroying it", self.qp_num):
            self.raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def address_handle(vector: addressing.AddressVector, port: int) -> Any:  # noqa: ANN401  (a pyverbs AHAttr)
    """An address vector for the verbs, leaving by `port`."""
    route = GlobalRoute(
        dgid=GID(vector.dgid),
        sgid_index=vector.sgid_index,
        flow_label=vector.flow_label,
        hop_limit=vector.hop_limit,
        traffic_class=vector.traffic_class,
    )
    return AHAttr(
        gr=route,
        is_global=int(vector.is_global),
        dlid=vector.dlid,
        sl=vector.service_level,
        src_path_bits=vector.src_path_bits,
        port_num=port,
    )


STATUSES = {value: name for value, name in names("IBV_WC_").items() if name.endswith("_ERR")}
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
        self._readdress_obstacle: str | None = None
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
    def readdress_obstacle(self) -> str:
        """Why a connected QP cannot be given another address vector, "" where it can; tried when first asked."""
        if self._readdress_obstacle is None:
            self._readdress_obstacle = readdress_refusal(self)
        return self._readdress_obstacle

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
