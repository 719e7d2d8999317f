"""One end of a reliable connection: a queue pair through its states, and what is posted on it."""

import time
from types import TracebackType
from typing import Any, Self

from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from c4bench.verbs import addressing
from c4bench.verbs.enums import ENUMS, names
from c4bench.verbs.errors import VerbsError, failure, verbs
from c4bench.verbs.path import DEFAULT_PATH, PathAttributes
from c4bench.verbs.path_control import OpenDevice
from c4bench.verbs.transport import Remote, TransportProfile

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
_QP_ACCESS = ENUMS.IBV_ACCESS_LOCAL_WRITE | ENUMS.IBV_ACCESS_REMOTE_WRITE | ENUMS.IBV_ACCESS_REMOTE_READ


class Endpoint:
    """An RC queue pair of a device. Every failing verb raises VerbsError; failures of posted work come as completions.

    `connect` may be called again, after an error or to take another path where `move` is refused: it goes through
    RESET, which drops everything still posted, and the far end must do the same. Completions of what was posted before
    may still come.
    """

    def __init__(self, device: OpenDevice, profile: TransportProfile, *, sends: int, receives: int) -> None:
        self.device = device
        self.profile = profile
        self.remote: Remote | None = None
        self.path: PathAttributes = DEFAULT_PATH
        cap = QPCap(max_send_wr=sends, max_recv_wr=receives, max_send_sge=1, max_recv_sge=1)
        with verbs(device.name, "creating a QP"):
            self.raw: Any = QP(device.pd, QPInitAttr(qp_type=ENUMS.IBV_QPT_RC, scq=device.cq, rcq=device.cq, cap=cap))
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
        attributes.qp_access_flags = _QP_ACCESS
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
        """Give a live connection another address vector: SQD, the vector, RTS.

        The caller has reaped every completion first. VerbsError where the send queue does not drain within
        `_DRAINED_S` or the device refuses; `connect` at both ends is then the way.
        """
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
