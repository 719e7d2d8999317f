"""A host's report about itself. It is sent to the host as text, so it needs Python 3.8 only and imports no c4bench.

It answers lines: `clock` with the time of day, `look {...}` with the report, `outputs [...]` with what commands print,
`mtu {...}` with the MTU to a peer. It ends when its input does. It changes nothing and sends only echo requests to the
given peers.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_COMMAND_S = 20
_ECHO_S = 0.5
_ECHO_TRIES = 2
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3
_SO_BINDTODEVICE = 25
# The RDMA MTUs, and the headers of a RoCE v2 packet, bytes: IP, UDP, BTH, RETH, ICRC.
_MTUS = (4096, 2048, 1024, 512, 256)
_HEADERS = 20 + 8 + 12 + 16 + 4
_SYS = Path("/sys/class")
_AT_ONCE = 8  # commands
_LONGEST_OUTPUT = 1 << 18  # characters
_MOST_STARTS = 20  # lines from which the JSON of a tool is tried


def read(path: Path) -> str:
    """A kernel file's text, "" where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def run(*argv: str, text: str = "") -> tuple[int, str, str] | None:
    """Exit code, stdout and stderr of a command, None if it does not exist or times out."""
    if shutil.which(argv[0]) is None:
        return None
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            input=text,
            timeout=_COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.returncode, done.stdout, done.stderr


def look(asked: dict[str, Any]) -> dict[str, Any]:
    """The whole report, by name; `asked` holds the agent's `python` and the inventory's `nics`."""
    return {
        "python": platform.python_version(),
        "root": os.geteuid() == 0,
        "agent": agent(asked["python"]),
        "rdma": [device(path) for path in sorted((_SYS / "infiniband").glob("*"))],
        "uverbs": uverbs(),
        "netdevs": {name: netdev(name) for name in netdevs(asked["nics"])},
        "knobs": {str(nic["index"]): knob(asked["python"], nic) for nic in asked["nics"]},
        "memlock_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "gpus": gpus(),
        "injector": injector(asked["python"]),
        "lldp": lldp(),
    }


def outputs(asked: list[list[str]]) -> list[str]:
    """What these commands print, "" for one that fails or is not there."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = pool.map(lambda argv: run(*argv), asked)
        return [done[1][:_LONGEST_OUTPUT] if done and done[0] == 0 else "" for done in answers]


def agent(python: str) -> str:
    """The version of c4bench that the agent's Python has, "" for none."""
    done = run(python, "-c", "import c4bench; print(c4bench.__version__)")
    return done[1].strip() if done and not done[0] else ""


def device(path: Path) -> dict[str, Any]:
    """An RDMA device; one under /sys/devices/virtual is software, and others say more of themselves."""
    software = "virtual" in path.resolve().parts
    return {
        **({} if software else of_hardware(path / "device")),
        "name": path.name,
        "software": software,
        "firmware": read(path / "fw_ver"),
        "board": read(path / "board_id"),
        "ports": [port(entry) for entry in sorted(path.glob("ports/*"))],
        "traffic_class": forced_class(read(path / "tc/1/traffic_class")),
    }


def of_hardware(path: Path) -> dict[str, Any]:
    """A device's driver, and whether its acknowledgement time-outs have a floor: None where that cannot be read."""
    register = "mlxreg", "-d", path.resolve().name, "--yes", "--reg_name", "ROCE_ACCL", "--get"
    driver = (path / "driver").resolve().name
    done = run(*register) if driver == "mlx5_core" else None
    return {"driver": driver, "ack_floor": ack_floor(done[1]) if done and done[0] == 0 else None}


def ack_floor(text: str) -> bool | None:
    """Whether time-outs below a floor are raised to it, from the register ROCE_ACCL as mlxreg prints it."""
    match = re.search(r"^\s*min_ack_timeout_limit_disabled\s*\|\s*0x([0-9a-fA-F]{1,8})\s*$", text, re.MULTILINE)
    return None if match is None else int(match[1], 16) == 0


def forced_class(text: str) -> int | None:
    """The traffic class that NVIDIA's driver package gives all packets of a device, None where it does not."""
    return int(match[1]) if (match := re.search(r"Global tclass=(\d{1,3})\b", text)) else None


def port(path: Path) -> dict[str, Any]:
    """A port of a device. The type of an unused GID cannot be read."""
    types = {read(entry) for entry in path.glob("gid_attrs/types/*")}
    devices = [read(entry) for entry in sorted(path.glob("gid_attrs/ndevs/*"))]
    return {
        "number": int(path.name),
        "link_layer": read(path / "link_layer"),
        "state": read(path / "state").rpartition(" ")[2],
        "rate": read(path / "rate"),
        "gid_types": sorted(types - {""}),
        "netdev": next((name for name in devices if name), ""),
        "subnet_manager_lid": int(read(path / "sm_lid") or "0", 0),
    }


def uverbs() -> str:
    """Why no RDMA device can be opened, "" if one can."""
    paths = list(Path("/dev/infiniband").glob("uverbs*"))
    if any(os.access(path, os.R_OK | os.W_OK) for path in paths):
        return ""
    return f"user {os.getuid()} may open none of /dev/infiniband/uverbs*" if paths else "nothing in /dev/infiniband"


def netdevs(nics: list[dict[str, Any]]) -> list[str]:
    """The interfaces of the inventory's NICs, or else of all RDMA ports."""
    named = [nic["netdev"] for nic in nics if nic["netdev"]]
    return sorted(set(named or (port(entry)["netdev"] for entry in _SYS.glob("infiniband/*/ports/*"))) - {""})


def netdev(name: str) -> dict[str, Any]:
    """An interface: MTU, priorities with PFC and with ECN (as notification and as reaction point), trust."""
    folder = _SYS / "net" / name
    lossless = pfc(name)
    trusted, by_dscp = ("", []) if lossless is None else trust(name)
    return {
        "mtu_bytes": int(read(folder / "mtu") or 0),
        "state": read(folder / "operstate"),
        "pfc": lossless,
        "ecn": sorted(set(ecn(folder, "roce_np")) & set(ecn(folder, "roce_rp"))),
        "trust": trusted,
        "priorities": by_dscp,
    }


def ecn(folder: Path, end: str) -> list[int]:
    """The priorities at which that end of congestion control is on (mlx5)."""
    return [int(path.name) for path in folder.glob(f"ecn/{end}/enable/*") if read(path) == "1"]


def pfc(name: str) -> list[int] | None:
    """The priorities with PFC, None where no tool reports them."""
    done = run("dcb", "-j", "pfc", "show", "dev", name)
    if done and done[0] == 0:
        return dcb_pfc(done[1])
    done = run("mlnx_qos", "-i", name)
    return priorities(done[1]) if done and done[0] == 0 else None


def priorities(text: str) -> list[int] | None:
    """Those with PFC, from what mlnx_qos prints."""
    rows = [line.replace(":", " ").split() for line in text.partition("PFC configuration")[2].splitlines()]
    enabled = next((row[1:] for row in rows if row and row[0] == "enabled"), None)
    return None if enabled is None else [number for number, on in enumerate(enabled) if on == "1"]


def trust(name: str) -> tuple[str, list[int]]:
    """The field that an interface takes a packet's priority from, "" where no tool reports it; each DSCP's priority."""
    done = run("mlnx_qos", "-i", name)
    if done and done[0] == 0:
        return mlnx_trust(done[1])
    done = run("dcb", "-N", "-j", "app", "show", "dev", name, "dscp-prio")
    return dcb_trust(done[1]) if done and done[0] == 0 else ("", [])


def mlnx_trust(text: str) -> tuple[str, list[int]]:
    """Both from what mlnx_qos prints, which lists a priority's DSCPs on one line or more."""
    state = (text.partition("Priority trust state:")[2].split() or [""])[0]
    rows = re.findall(r"prio:(\d) dscp:((?:\d\d?,)*\d{0,2})", text)
    pairs = [(int(dscp), int(priority)) for priority, row in rows for dscp in row.split(",") if dscp]
    return (state, mapped(pairs)) if state == "dscp" else (state if state == "pcp" else "", [])


def dcb_pfc(text: str) -> list[int] | None:
    """The priorities with PFC in what dcb prints; None where it does not say."""
    enabled = json_of(text).get("prio-pfc", [] if not text.strip() else None)
    return (
        [priority for priority, on in enumerate(enabled) if on in (True, "on")] if isinstance(enabled, list) else None
    )


def dcb_trust(text: str) -> tuple[str, list[int]]:
    """Both from the APP table that dcb prints; without a DSCP in it, what is trusted is unknown."""
    rows = json_of(text).get("dscp_prio")
    rows = rows if isinstance(rows, list) else []
    pairs = [row for row in rows if isinstance(row, list) and list(map(type, row)) == [int, int]]
    return ("dscp", mapped(pairs)) if pairs else ("", [])


def json_of(text: str) -> dict[str, Any]:
    """The JSON object that a tool has printed, which lines of other text may stand before; empty if there is none."""
    lines = text.splitlines(keepends=True)
    for start in range(min(len(lines), _MOST_STARTS)):
        try:
            found = json.loads("".join(lines[start:]))
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) else {}
    return {}


def mapped(pairs: list[Any]) -> list[int]:
    """The priority of each DSCP, from pairs of both; a DSCP that is in none has priority 0."""
    known = dict(pairs)
    return [known.get(dscp, 0) for dscp in range(64)]


def knob(python: str, nic: dict[str, Any]) -> dict[str, str]:
    """The path control that works on a NIC, tried on the device, or the reason for none."""
    asked = '{"do": "open"}\n{"do": "state"}\n'
    done = run(python, "-m", "c4bench.verbs.endpoint_console", json.dumps(nic), text=asked) if nic["device"] else None
    if done is None or done[0]:
        printed = done[2].strip().splitlines() if done else ["not tried"]
        return {"name": "", "why": (printed or ["it printed nothing"])[-1]}
    answer = json_of((done[1].splitlines() or [""])[-1])
    state = answer.get("answer")
    return {"name": state.get("paths", "") if isinstance(state, dict) else "", "why": answer.get("error", "")}


def gpus() -> list[str]:
    """Names of the GPUs."""
    done = run("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return done[1].strip().splitlines() if done and done[0] == 0 else []


def lldp() -> str:
    """What lldpd, or else systemd-networkd, reports of the neighbours; "" where neither answers this user."""
    commands = ("lldpctl", "-f", "json0"), ("networkctl", "lldp", "--json=short")
    answers = (run(*argv) for argv in commands)
    return next((done[1] for done in answers if done and done[0] == 0 and done[1].strip()), "")


def injector(python: str) -> dict[str, Any]:
    """Whether the injector may run as root, and the faults and residues it lists."""
    asked, status = (run(python, "-m", "c4bench.inject", word) for word in ("may", "status"))
    lines = status[1].splitlines() if status and status[0] == 0 else []
    if asked is None or asked[0]:
        return {"runs": False, "why": refusal(asked), "lines": lines}
    return {"runs": True, "why": "", "lines": lines}


def refusal(asked: tuple[int, str, str] | None) -> str:
    """Why the injector did not answer: its error, or the last line of output."""
    words = (asked[1] or asked[2]).strip().splitlines() if asked else []
    if not words:
        return "no such command"
    return str(json_of(words[-1]).get("error", words[-1]))


def mtu(asked: dict[str, Any]) -> dict[str, int]:
    """The largest RDMA MTU from our NIC `nic` to each peer's address, 0 without a reply."""
    try:
        return {address: largest(asked["nic"], address) for address in asked["peers"]}
    except OSError:  # no such interface, so nothing passes
        return dict.fromkeys(asked["peers"], 0)


def largest(nic: dict[str, Any], address: str) -> int:
    """The largest RDMA MTU at which `address` replies."""
    return next((size for size in _MTUS if any(echo(nic, address, size) for _ in range(_ECHO_TRIES))), 0)


def echo(nic: dict[str, Any], address: str, size: int) -> bool:
    """Whether an unfragmented echo request as long as a RoCE packet of `size` is answered."""
    raw = os.geteuid() == 0
    with socket.socket(socket.AF_INET, socket.SOCK_RAW if raw else socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as sock:
        sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
        if raw and nic["netdev"]:
            sock.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, nic["netdev"].encode())
        if nic["address"]:
            sock.bind((nic["address"], 0))
        mark = os.urandom(8)
        header = struct.pack("!BBHHH", 8, 0, 0, os.getpid() & 0xFFFF, size)
        body = mark.ljust(size + _HEADERS - 20 - len(header), b"\0")
        try:
            sock.sendto(with_checksum(header + body), (address, 0))
        except OSError:
            return False
        return reply_arrived(sock, mark)


def reply_arrived(sock: socket.socket, mark: bytes) -> bool:
    """Wait for an echo reply that holds the mark."""
    until = time.monotonic() + _ECHO_S
    while select.select([sock], [], [], max(0.0, until - time.monotonic()))[0]:
        packet = sock.recv(65536)
        kind = packet[(packet[0] & 15) * 4] if packet[0] >> 4 == 4 else packet[0]
        if kind == 0 and mark in packet:
            return True
    return False


def with_checksum(packet: bytes) -> bytes:
    """The packet with its Internet checksum (RFC 1071)."""
    words = struct.unpack(f"!{len(packet) // 2}H", packet)
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return packet[:2] + struct.pack("!H", ~total & 0xFFFF) + packet[4:]


_ANSWERS: dict[str, Callable[[Any], Any]] = {
    "clock": lambda _: time.time(),
    "look": look,
    "outputs": outputs,
    "mtu": mtu,
}


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        try:
            answer = _ANSWERS[word](json.loads(rest or "null"))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
