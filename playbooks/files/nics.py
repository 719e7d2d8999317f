"""Print this host's RDMA NICs as a JSON list, in the words of an inventory's `c4.nics`.

Of a device's first port; without a netdev (InfiniBand without IPoIB), or with one in another network namespace, it has
no address. Management stays out: a NIC that carries the default route is not listed.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

DEVICES = Path("/sys/class/infiniband")


def said(*words: str) -> list[dict[str, Any]]:
    """What an `ip -json` command answers; nothing about what is not there."""
    done = subprocess.run(["ip", "-json", *words], capture_output=True, text=True, check=False)
    found: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    return found


def text(path: Path) -> str:
    """A file of the kernel's, or nothing."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def rate(device: str) -> str:
    """`100 Gb/sec (4X EDR)` is `100gbit`."""
    words = text(DEVICES / device / "ports/1/rate").split()
    return f"{words[0]}gbit" if words and words[0] not in {"0", "2.5"} else ""


def main() -> None:
    """The list, by device name."""
    outside = {route.get("dev") for route in said("route", "show", "default")}
    found = []
    for device in sorted(path.name for path in DEVICES.glob("*")):
        netdev = text(DEVICES / device / "ports/1/gid_attrs/ndevs/0")
        if netdev and netdev in outside:
            continue
        addresses = [
            entry["local"]
            for link in (said("address", "show", "dev", netdev) if netdev else [])
            for entry in link.get("addr_info", [])
            if entry["scope"] == "global"
        ]
        nic = {"device": device, "netdev": netdev, "address": (addresses or [""])[0], "rate": rate(device)}
        found.append({name: value for name, value in nic.items() if value})
    print(json.dumps(found))  # noqa: T201


main()
