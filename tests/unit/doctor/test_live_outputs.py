"""A live host's tools are judged by the parsers and rules of saved outputs."""

from pathlib import Path

import msgspec
import pytest

from c4bench.doctor import live, look, overview
from c4bench.doctor import settings as seen
from c4bench.doctor.capabilities import Report
from c4bench.doctor.files import judge_files
from c4bench.doctor.findings import Device, HostSelfReport, InjectorState, Netdev, Port
from c4bench.doctor.misconfigurations import judge
from c4bench.doctor.settings import NicSettings

CASES = Path(__file__).parents[2] / "evidence_fixtures/cases/16-device-outputs"
BEFORE, AFTER = (CASES / f"ethtool_symbol_errors/gpu-e03_ens5f0np0_{time}.txt" for time in ("before", "after"))
NETDEVS = {"ens5f0np0": Netdev(9000, "up", None, ())}
FACTS = HostSelfReport("3.11", True, "", (), "", NETDEVS, {}, -1, (), InjectorState(False, "", ()))


class Tools:
    """A host on which commands print these files, one after the other."""

    def __init__(self, printed):
        self.printed = {command: list(paths) for command, paths in printed.items()}

    def __call__(self, commands):
        return [self._answer(" ".join(command)) for command in commands]

    def _answer(self, command):
        left = self.printed.get(command, [])
        return left.pop(0).read_text() if left else ""


def test_a_live_host_and_its_saved_outputs_are_judged_alike():
    """The same texts give the same remarks, whether asked for or saved; two readings are taken by ourselves."""
    tools = Tools({"show_gids": [CASES / "show_gids.txt"], "ethtool -S ens5f0np0": [BEFORE, AFTER]})
    asked, settings = live.examine(FACTS, tools, apart_s=0.0)
    asked += tuple(judge([seen.Device("gpu-e03", settings)]).remarks["gpu-e03"])
    saved = judge_files([BEFORE.parent, CASES / "show_gids.txt"])
    assert set(asked) == {one for device in saved.devices for one in device.remarks}
    page = overview.remark_lines([Report("gpu-e03", (), remarks=asked), Report("gpu-e04", (), remarks=asked)])
    assert len(page) == 4
    start = "BAD  gpu-e03, gpu-e04: ens5f0np0: symbol errors grow, rx_symbol_err_phy 11"
    assert any(line.startswith(start) for line in page)


def test_a_host_without_errors_is_read_once():
    """Without errors no second reading is taken, and a host without these tools has no remarks."""
    clean = BEFORE.read_text()
    for name in ("rx_symbol_err_phy: 11", "rx_pcs_symbol_err_phy: 19", "link_down_events_phy: 2"):
        clean = clean.replace(name, f"{name.partition(':')[0]}: 0")
    assert (
        live.examine(FACTS, lambda commands: [clean if "-S" in one else "" for one in commands], apart_s=1e9)[0] == ()
    )
    assert live.examine(FACTS, lambda commands: [""] * len(commands))[0] == ()


@pytest.mark.parametrize(
    ("command", "printed"),
    [(["sh", "-c", "echo out"], "out\n"), (["sh", "-c", "echo x; exit 1"], ""), (["no-such-tool"], "")],
)
def test_commands_are_run_on_the_host(command, printed):
    """What a command prints comes back; one that fails or is not there has printed nothing."""
    assert look.outputs([command]) == [printed]


def test_a_live_port_without_any_gid_is_named():
    """The kernel lists none for it, and so no tool does; another host's NIC has one."""
    port = Port(1, "Ethernet", "ACTIVE", "", (), "", 0)
    facts = msgspec.structs.replace(FACTS, rdma=(Device("mlx5_0", False, "", "", (port,)),))
    _, settings = live.examine(facts, lambda commands: [""] * len(commands))
    other = NicSettings("eth2", gids=(3,))
    remarks = judge([seen.Device("a", settings), seen.Device("b", (other,))]).remarks
    assert [(one.where, one.kind) for one in remarks["a"]] == [("mlx5_0 port 1", "gid")]
    assert "b" not in remarks
