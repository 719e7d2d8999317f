"""What keeps a built kernel from being used; its boots are stand-ins here."""

from pathlib import Path

import msgspec
import pytest

from c4bench.errors import UnhealthyError
from c4bench.lab.machine.autopsy import Landmarks
from c4bench.lab.machine.kernel import build, cache, source
from c4bench.lab.machine.kernel.cache import Kernel
from c4bench.lab.machine.run import LabRun
from c4bench.lab.spec import Report

BUILT = Kernel(Path("/nowhere"), "7.3.4", 1.0, Landmarks(0, 0, 0, 0, 0, 0, 0, 0))
BOUND_BPS = 1e10 * 4096 / 4154  # what a 10 Gbit/s link carries of payload
GOOD = Report(["ab12", "cd34"], BOUND_BPS, 22_143_968_768)
QUIET = "<6>[    0.000000] rdma_rxe: loaded\n<4>[    1.0] process 'init' started with executable stack\n"


@pytest.fixture
def boots(monkeypatch):
    """`boots((REPORT, DMESG, EXIT CODE), ...)`: what each boot in turn leaves behind; an error is raised instead."""

    def make(*ends):
        pending = list(ends)

        def launch(_topology, _command, directory, *, kernel, **_):
            assert kernel is BUILT
            end = pending.pop(0)
            if isinstance(end, Exception):
                raise end
            report, dmesg, exit_code = end
            (directory / "lab").mkdir()
            (directory / "lab/dmesg.log").write_text(dmesg)
            (directory / "report.json").write_bytes(msgspec.json.encode(report))
            return LabRun(exit_code=exit_code, machine_s=1.0, virtual_s=1.0, boot_s=1.0)

        monkeypatch.setattr(build, "launch", launch)

    return make


def test_a_kernel_that_does_as_it_should_is_used(boots, tmp_path):
    """The same report twice, at the bound."""
    boots((GOOD, QUIET, 0), (GOOD, QUIET, 0))
    assert build.prove(BUILT, tmp_path) == GOOD


SLOW = msgspec.structs.replace(GOOD, goodput_bps=0.9 * BOUND_BPS)
FAST = msgspec.structs.replace(GOOD, goodput_bps=1.1 * BOUND_BPS)
OTHER_NUMBERS = msgspec.structs.replace(GOOD, drawn=["ab12", "cd35"])
LATER = msgspec.structs.replace(GOOD, ended_ns=GOOD.ended_ns + 256)
OOPS = QUIET + "<1>[    2.0] BUG: kernel NULL pointer dereference, address: 8\n"


@pytest.mark.parametrize(
    ("first", "again", "words"),
    [
        ((GOOD, QUIET, 0), (OTHER_NUMBERS, QUIET, 0), "did not give the same bytes"),
        ((GOOD, QUIET, 0), (LATER, QUIET, 0), "did not give the same bytes"),
        ((SLOW, QUIET, 0), (SLOW, QUIET, 0), "RDMA runs at 0.900 of the payload bound, not 0.95 to 1.005"),
        ((FAST, QUIET, 0), (FAST, QUIET, 0), "RDMA runs at 1.100 of the payload bound"),
        ((GOOD, QUIET, 1), None, "ended with exit code 1"),
        ((GOOD, OOPS, 0), None, "BUG: kernel NULL pointer dereference"),
        ((GOOD, QUIET, 0), UnhealthyError("stood still\nwaiting in poll"), "stood still"),
    ],
)
def test_a_kernel_that_fails_its_check_is_not_used(boots, tmp_path, first, again, words):
    """Other numbers, another time, another rate, a failed command, a complaint, a hang: one line that says which."""
    boots(first, again)
    with pytest.raises(UnhealthyError) as refused:
        build.prove(BUILT, tmp_path)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "Linux 7.3.4) failed its check and is not used" in str(refused.value)


def test_what_a_killed_set_up_left_is_removed_by_the_next(tmp_path, monkeypatch):
    """The build's folder and the one that packages are fetched into; kernels and sources stay."""
    monkeypatch.setenv("C4BENCH_CACHE", str(tmp_path))
    monkeypatch.delenv(cache.SOURCE_VARIABLE, raising=False)
    for name in ("build-x1/source", "fetch-x2/state", "kernel-0123-4567", "sources/7.3.4-1"):
        (tmp_path / name).mkdir(parents=True)

    def none(_):
        raise UnhealthyError("none")

    monkeypatch.setattr(source, "obtain", none)
    assert cache.find() is None
    with pytest.raises(UnhealthyError, match="none"):
        build.build()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["build.lock", "kernel-0123-4567", "sources"]
