"""Path controls: arithmetic of source ports, and the controls of hardware NICs on stand-ins."""

import errno
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyverbs.pyverbs_error import PyverbsRDMAError

from c4bench.model.fabric import Nic
from c4bench.verbs import device, mlx5, path_controls
from c4bench.verbs.addressing import (
    ETHERNET,
    FIRST_PORT,
    INFINIBAND,
    LAST_PORT,
    PathAttributes,
    PortStatus,
    ecmp_label,
    label_for,
    port_of,
)
from c4bench.verbs.endpoint_console import EndpointConsole
from c4bench.verbs.errors import VerbsError
from c4bench.verbs.mlx5 import LagPort, LiveSourcePort
from c4bench.verbs.path_control import SOFTWARE, NoPathControl
from c4bench.verbs.path_controls import FlowLabel, PathBits, choose
from c4bench.verbs.transport import Remote

MELLANOX = 0x02C9


@given(st.integers(FIRST_PORT, LAST_PORT), st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_every_port_has_a_label_that_folds_to_it(port, local_qp, remote_qp):
    """The label chosen for a port is never the ECMP one and gives that port whatever the QPs are."""
    label = label_for(port)
    assert 0 < label < 1 << 20
    assert port_of(label, local_qp, remote_qp) == port


def test_ecmp_port_follows_the_qp_numbers():
    """Without a label the port is the one seen on the wire for QPs 17 and 17 of Linux 6.1."""
    assert label_for(0) == 0
    assert port_of(0, 17, 17) == 0xC121
    assert ecmp_label(0x12345, 0x54321) == ecmp_label(0x54321, 0x12345)


@pytest.mark.parametrize("port", [4791, 0xBFFF, 0x10000])
def test_ports_outside_the_dynamic_range_are_refused(port):
    """A port that no flow label gives is an error."""
    with pytest.raises(ValueError, match="outside"):
        label_for(port)


class Provider:
    """Stands in for pyverbs' mlx5 module: firmware that obeys, or one that refuses with an errno."""

    def __init__(self, refuses=0, lag_ports=2):
        self.calls = []
        self._refuses = refuses
        self._lag_ports = lag_ports
        self.Mlx5QP = self
        self.Mlx5DVContextAttr = SimpleNamespace

    def _call(self, *call):
        if self._refuses:
            raise PyverbsRDMAError("Failed to modify", self._refuses)
        self.calls.append(call)

    def modify_udp_sport(self, qp, port):
        self._call("sport", qp, port)

    def modify_lag_port(self, qp, port):
        self._call("lag", qp, port)

    def query_lag_port(self, qp):
        self._call("query", qp)
        return 0, 2

    @contextmanager
    def Mlx5Context(self, *_, **__):  # noqa: N802  (pyverbs' name)
        yield SimpleNamespace(query_mlx5_device=lambda: SimpleNamespace(num_lag_ports=self._lag_ports))


class Endpoint:
    """Stands in for a connected endpoint of a NIC that is not here."""

    raw = "qp"
    qp_num = 17
    qps = (17, 17)

    def __init__(self, device=None):
        self.device = device or Device()
        self.path = PathAttributes()

    def connect_by(self, remote, path=None):
        pass

    def readdress(self, path):
        self.path = path

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


class Device:
    """Stands in for a NIC of that link layer and vendor."""

    name = "mlx5_0"
    port_number = 1

    def __init__(self, link_layer=ETHERNET, lmc=0, vendor=MELLANOX):
        self.vendor = vendor
        self._status = PortStatus("ACTIVE", 4096, link_layer, 0x2C, lmc)

    def status(self):
        return self._status

    def connection(self, *_):
        return Endpoint(self)

    def here(self):
        return Remote("::1", 0)


@pytest.fixture
def provider(monkeypatch):
    def install(**options):
        installed = Provider(**options)
        monkeypatch.setattr(mlx5, "_provider", lambda: installed)
        return installed

    return install


def test_firmware_that_obeys_gives_the_live_port(provider):
    """If the mlx5 verb works on a trial QP it is chosen, and moves a connection without changing its address vector."""
    calls = provider().calls
    control = choose(Device())
    endpoint = Endpoint()
    control.after_connect(endpoint, 0)
    assert (type(control), [call[0] for call in calls]) == (LiveSourcePort, ["sport"])
    control.move(endpoint, 0xC777)
    assert (calls[-1], control.source_port(endpoint)) == (("sport", "qp", 0xC777), 0xC777)
    control.move(endpoint, 0)
    assert (calls[-1], control.source_port(endpoint)) == (("sport", "qp", 0xC121), 0xC121)


def test_other_nics_are_not_asked_for_mlx5_verbs(provider):
    """A NIC of another family is rejected before any QP is made on it."""
    calls = provider().calls
    assert "mlx5 family" in LiveSourcePort().obstacle(Device(vendor=0x8086))
    assert "mlx5 family" in LagPort().obstacle(Device(vendor=0x8086))
    assert calls == []


def test_firmware_that_refuses_leaves_the_label(provider, monkeypatch):
    """If firmware refuses the mlx5 verb, the flow label is used on a kernel whose driver supports it."""
    provider(refuses=errno.EOPNOTSUPP)
    monkeypatch.setattr(path_controls, "kernel_version", lambda: (5, 8))
    assert type(choose(Device())) is FlowLabel


def test_a_bond_that_places_by_queue_pair_is_used(provider, monkeypatch):
    """If only the LAG port control works, its ports are the choices, and are set after connecting."""
    installed = provider()
    monkeypatch.setattr(path_controls, "kernel_version", lambda: (5, 7))
    monkeypatch.setattr(LiveSourcePort, "obstacle", lambda *_: "refused")
    control = choose(Device())
    endpoint = Endpoint()
    control.after_connect(endpoint, 0)
    control.after_connect(endpoint, 2)
    assert (type(control), list(control.choices(Device()))) == (LagPort, [1, 2])
    # The trial asked where it goes and set just that; 0 set nothing.
    assert installed.calls == [("query", "qp"), ("lag", "qp", 2), ("lag", "qp", 2)]
    assert control.attributes(2) == PathAttributes()


def test_infiniband_chooses_among_its_lids(provider):
    """An InfiniBand port with an LMC offers its path bits, whatever the NIC could do on Ethernet."""
    provider()
    device = Device(INFINIBAND, lmc=2)
    control = choose(device)
    assert (type(control), list(control.choices(device)), control.attributes(3)) == (
        PathBits,
        [1, 2, 3],
        PathAttributes(path_bits=3),
    )
    endpoint = Endpoint(device)
    control.move(endpoint, 1)
    assert (endpoint.path, control.source_port(endpoint)) == (PathAttributes(path_bits=1), 0)
    with pytest.raises(ValueError, match="LID path bits"):
        control.attributes(128)


def test_without_a_knob_the_reasons_are_kept(provider):
    """A NIC without any path control connects by ECMP, and its errors have the reasons."""
    provider(refuses=errno.EPERM)
    control = choose(Device(INFINIBAND))
    assert type(control) is NoPathControl
    assert (control.attributes(0), list(control.choices(Device()))) == (PathAttributes(), [])
    with pytest.raises(ValueError, match=r"FlowLabel: its link layer is InfiniBand; .*PathBits: its LMC is 0"):
        control.attributes(0xC001)
    control.move(Endpoint(), 0)
    with pytest.raises(VerbsError, match="cannot be moved"):
        control.move(Endpoint(), 0xC001)


@pytest.mark.parametrize(
    ("vendor", "kernel", "obstacle"),
    [(MELLANOX, (5, 7), "since Linux 5.8"), (MELLANOX, (6, 1), ""), (0x14E4, (6, 1), "vendor 0x14e4")],
)
def test_hardware_goes_by_its_drivers_history(monkeypatch, vendor, kernel, obstacle):
    """For a hardware NIC the driver and the kernel's version decide whether the flow label works."""
    monkeypatch.setattr(path_controls, "kernel_version", lambda: kernel)
    assert obstacle in FlowLabel().obstacle(Device(vendor=vendor))
    assert bool(FlowLabel().obstacle(Device(vendor=vendor))) == bool(obstacle)


def test_a_driver_that_ignores_the_label_is_found_out(monkeypatch):
    """A software NIC whose packet has another source port than requested is detected by packet capture."""

    @contextmanager
    def tap(*_):
        yield SimpleNamespace(source_ports=lambda *_: {0xC000})

    monkeypatch.setattr(path_controls, "netdev_of", lambda *_: "eth0")
    monkeypatch.setattr(path_controls, "PacketCapture", tap)
    monkeypatch.setattr(Endpoint, "probe", lambda *_: None, raising=False)
    assert "it sent from 49152" in FlowLabel().obstacle(Device(vendor=0xFFFFFF))


def test_the_console_answers_what_each_control_lacks(provider, monkeypatch):
    """Every control is tried on the opened device, and so is the move of a connected QP."""
    provider(refuses=errno.EPERM)
    monkeypatch.setattr(Device, "readdress_obstacle", "EINVAL", raising=False)
    console = EndpointConsole(Nic("h0", 0, "mlx5_0", "eth2", "10.2.0.1", 1e11))
    console._device = Device(INFINIBAND, lmc=2)
    answer = console.answer('{"do": "knobs"}')["answer"]
    assert answer.keys() == {*path_controls.PATH_CONTROLS, "moves of connected QPs"}
    assert {name for name, why in answer.items() if not why} == {"lid_path_bits"}
    assert (answer["flow_label"], answer["moves of connected QPs"]) == ("its link layer is InfiniBand", "EINVAL")


class Qp:
    """Stands in for a connected QP of pyverbs: one whose driver has no state SQD, or one that has."""

    qp_num = 17

    def __init__(self, refuses):
        self.refuses, self.states, self.addresses, self.sq_draining = refuses, ["RTS"], 0, 0

    def modify(self, attributes, mask):
        if mask == device.ENUMS.IBV_QP_AV:
            self.addresses += 1
            return
        state = device.STATES[attributes.qp_state]
        self.states.append(state)
        if state == "SQD" and self.refuses:
            raise PyverbsRDMAError("Failed to modify QP", errno.EINVAL)

    def query(self, _):
        reached = [state for state in self.states if state != "SQD" or not self.refuses]
        states = {name: number for number, name in device.STATES.items()}
        return SimpleNamespace(qp_state=states[reached[-1]], sq_draining=0), None


class OpenNic(device.Device):
    """A NIC whose QPs are stand-ins, all else being the real thing."""

    def __init__(self, vendor, *, refuses):
        self.name, self.port_number = "mlx5_0", 1
        self._vendor, self._refuses = vendor, refuses
        self._readdress_obstacle = None
        self.made = []

    @property
    def vendor(self):
        return self._vendor

    def here(self):
        return Remote("::1", 0)

    def connection(self, *_):
        return self.connected()

    def connected(self):
        endpoint = OpenQp(self, Qp(self._refuses))
        self.made.append(endpoint.raw)
        return endpoint


class OpenQp(device.Endpoint):
    """An endpoint with such a QP."""

    def __init__(self, nic, raw):
        self.device, self.raw, self.qp_num, self.path = nic, raw, raw.qp_num, PathAttributes()

    def connect_by(self, *_):
        pass

    def close(self):
        pass

    def _address(self):
        return None


@pytest.fixture
def addresses(monkeypatch):
    """Attributes of a QP without pyverbs' own checks of what is in them."""
    monkeypatch.setattr(device, "QPAttr", SimpleNamespace)


@pytest.mark.usefixtures("addresses")
@pytest.mark.parametrize("control", [FlowLabel(), PathBits()])
def test_a_transition_that_the_device_refuses_is_never_asked_of_a_connection(control):
    """mlx5 has no SQD: found once on a scratch QP; connections are not touched, and keep their path until the next."""
    nic = OpenNic(MELLANOX, refuses=True)
    endpoint = nic.connected()
    for _ in range(2):
        with pytest.raises(
            VerbsError, match=r"QP 17 on mlx5_0 cannot take another path .* but when it connects the next"
        ):
            control.move(endpoint, 3 if isinstance(control, PathBits) else 0xC777)
    live, *scratch = nic.made
    assert (live.states, live.addresses, endpoint.path) == (["RTS"], 0, PathAttributes())
    assert [qp.states for qp in scratch] == [["RTS", "SQD"]]


@pytest.mark.usefixtures("addresses")
@pytest.mark.parametrize("vendor", [SOFTWARE, 0x8086])
def test_a_device_that_takes_the_transition_moves_its_connections(vendor):
    """Out of RTS and back with another label; only hardware is tried first."""
    nic = OpenNic(vendor, refuses=False)
    endpoint = nic.connected()
    FlowLabel().move(endpoint, 0xC777)
    live, *scratch = nic.made
    assert (live.states, live.addresses) == (["RTS", "SQD", "RTS"], 1)
    assert endpoint.path == PathAttributes(flow_label=label_for(0xC777))
    assert len(scratch) == (vendor != SOFTWARE)
