"""What the hosts of an inventory can and cannot do, before anything is put on them."""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.inventory import Access, Inventory
from c4bench.model.check import Check
from c4bench.model.fabric import Host
from c4bench.remote import Connection, connect

_TIMEOUT_S = 20.0
_CLOCKS_APART_S = 0.1
_AT_ONCE = 16


class _Clock(msgspec.Struct, frozen=True):
    offset_s: float
    uncertainty_s: float


def host_checks(inventory: Inventory, reach: Callable[[str, Access], Connection] = connect) -> list[Check]:
    """Look at every host, many at once; a host that cannot be reached gets that one line only."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        looked = pool.map(lambda host: _look_at(host, inventory.access[host.name], reach), inventory.hosts)
        return [check for checks in looked for check in checks]


def _look_at(host: Host, access: Access, reach: Callable[[str, Access], Connection]) -> list[Check]:
    with reach(host.name, access) as connection:
        try:
            connection.run(["true"], timeout_s=_TIMEOUT_S)
            return [
                Check(f"{host.name}: reachable", True, access.address, ""),
                _python(host, connection),
                _agent(host, access, connection),
                _rdma(host, connection),
                _clock(host, connection),
            ]
        except UnhealthyError as error:
            return [Check(f"{host.name}: reachable", False, str(error), "mend the access, then look again")]


def _said(connection: Connection, script: str) -> str:
    return connection.run(["sh", "-c", script], timeout_s=_TIMEOUT_S, check=False).stdout.decode().strip()


def _python(host: Host, connection: Connection) -> Check:
    wanted = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = _said(connection, f"command -v {wanted} || python3 -V")
    mend = f"install {wanted} there, or run c4bench with the host's version"
    return Check(f"{host.name}: {wanted}", found.endswith(wanted), found or "no python3", mend)


def _agent(host: Host, access: Access, connection: Connection) -> Check:
    said = connection.run(
        [access.python, "-c", "import c4bench; print(c4bench.__version__)"], timeout_s=_TIMEOUT_S, check=False
    )
    version = said.stdout.decode().strip()
    detail = f"version {version}" if version else f"{access.python} has no c4bench"
    return Check(f"{host.name}: c4bench", bool(version), detail, "deploy it: playbooks/deploy.yml")


def _rdma(host: Host, connection: Connection) -> Check:
    devices = _said(connection, "ls /sys/class/infiniband 2>/dev/null").split()
    absent = [nic.device for nic in host.nics if nic.device and nic.device not in devices]
    detail = f"has {', '.join(devices) or 'none'}" + (f", lacks {', '.join(absent)}" if absent else "")
    mend = "load the NIC's RDMA driver, or correct c4.nics in the inventory"
    return Check(f"{host.name}: RDMA devices", bool(devices) and not absent, detail, mend)


def _clock(host: Host, connection: Connection) -> Check:
    clock = _offset(connection)
    near = abs(clock.offset_s) <= _CLOCKS_APART_S + clock.uncertainty_s
    detail = f"{clock.offset_s:+.3f} s from ours (+-{clock.uncertainty_s:.3f} s)"
    return Check(f"{host.name}: clock", near, detail, "keep the hosts' clocks together: chrony or ptp4l")


def _offset(connection: Connection) -> _Clock:
    """As NTP estimates it from one exchange (RFC 5905, section 8); half the round trip bounds its error."""
    sent_s = time.time()
    answer = connection.run(["date", "+%s.%N"], timeout_s=_TIMEOUT_S)
    received_s = time.time()
    return _Clock(float(answer.stdout) - (sent_s + received_s) / 2, (received_s - sent_s) / 2)
