"""What the injector takes from its caller: names, and nothing that describes a target."""

import json
import os

import pytest
from fakes import NIC, nic_request
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import permitted
from c4bench.inject.permitted import Permitted, PermittedHost, load, restrict
from c4bench.model.fault import FaultRequest

OWN = replace(NIC, netdev="real0", device="rxe0")
FILE = Permitted(
    {
        "h5": PermittedHost(disruptive=True, nics=(OWN,)),
        "h6": PermittedHost(nics=(OWN,)),
        "leaf0": PermittedHost(disruptive=True, netns="/run/netns/leaf0"),
    }
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where `targets.json` is read from."""
    monkeypatch.setattr(permitted, "configuration", lambda: tmp_path)
    return tmp_path


def test_everything_but_names_comes_from_the_file():
    """A caller's interface, device, addresses and namespace are replaced by those of the NIC with that number."""
    asked = replace(nic_request("nic.down"), netns="/tmp/mine", nics=(replace(NIC, netdev="eth0"),))
    found = restrict(replace(asked, nic=replace(NIC, netdev="eth0", device="mlx5_9")), FILE)
    assert (found.nic, found.nics, found.netns) == (OWN, (OWN,), None)
    assert restrict(FaultRequest("link.down", "leaf0", port="up0"), FILE).netns == "/run/netns/leaf0"


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (FaultRequest("nic.down", "h9", NIC), "'h9' is not a host or switch in .*targets.json"),
        (FaultRequest("nic.down", "h6", NIC), "h6 is not marked `disruptive: true`"),
        (FaultRequest("nic.down", "h5", replace(NIC, index=3)), "h5 has no NIC 3 in .*; it has: 0"),
        (FaultRequest("link.down", "leaf0", port="lo"), "lo is this host's loopback"),
        (FaultRequest("link.down", "leaf0", port="d0\x85netns\x851"), "is not the name of an interface"),
        (FaultRequest("link.down", "leaf0", port="-force"), "is not the name of an interface"),
    ],
)
def test_what_the_file_does_not_permit_is_refused(request_, says):
    """Other hosts, hosts without `disruptive`, other NICs, the loopback, and names that a tool could misread."""
    with pytest.raises(UsageError, match=says):
        restrict(request_, FILE)


@given(st.text(max_size=20))
def test_a_name_is_one_plain_word(name):
    """Whatever passes as a port is ASCII without blanks, does not begin with a dash, and is short enough."""
    try:
        restrict(FaultRequest("link.down", "leaf0", port=name), FILE)
    except UsageError:
        return
    assert name == "" or (name.isascii() and name.split() == [name] and name[0] != "-" and len(name) <= 15)


def test_without_the_file_only_root_itself_describes_targets(monkeypatch):
    """Who came by sudo is refused; root by login may break what its inventory says, but never the loopback."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", "1000")
    with pytest.raises(UnhealthyError, match=r"there is no /etc/c4bench/targets.json; deploy"):
        restrict(nic_request("nic.down"), None)
    monkeypatch.delenv("SUDO_UID")
    assert restrict(nic_request("nic.down"), None).nic == NIC
    with pytest.raises(UsageError, match="loopback"):
        restrict(FaultRequest("nic.down", "h5", replace(NIC, netdev="lo")), None)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("spoil", ["mode", "owner", "link", "fifo", "damaged", "huge"])
def test_a_file_that_is_not_roots_alone_is_refused(folder, spoil):
    """A file that others may write, own or have linked is not believed, and a FIFO is not waited for."""
    path = folder / "targets.json"
    path.write_text(json.dumps({"hosts": {}}))
    assert load() == Permitted({})
    match spoil:
        case "mode":
            path.chmod(0o666)
        case "owner":
            os.chown(path, 65534, 0)
        case "link":
            path.rename(folder / "elsewhere")
            path.symlink_to(folder / "elsewhere")
        case "fifo":
            path.unlink()
            os.mkfifo(path)
        case "damaged":
            path.write_text('{"hosts": ')
        case "huge":
            path.write_bytes(b" " * (2 << 20))
    with pytest.raises(UnhealthyError, match="deploy again"):
        load()


def test_nothing_deployed(folder):  # noqa: ARG001  (an empty folder)
    """Without the file there is no error: root by login works without a deployment."""
    assert load() is None
