"""A plain Linux switch in namespaces, with a real SSH server and a real atd, and the controller that changes it.

Both are hosts of `netns_hosts`, on which nothing of c4bench is deployed: the controller has this checkout's Python, the
switch none. up0 and up1 lead to two spines, over which one route has two next hops; down0 leads to a host.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import netns_hosts
import yaml

from c4bench import remote
from c4bench.inventory import load

SWITCH, CONTROLLER = "leaf0", "ops"
PORTS = {"up0": "10.8.0", "up1": "10.8.1", "down0": "10.8.2"}
ROUTE = "10.9.0.0/24"
# What a fault could leave, as the switch's own tools print it: what is set, since the kernel says up to a second later
# what came of it. Its management port is another one after a restart.
_STATE = (
    "{ ip -br link | awk '{print $1, $3, $4}'; ip -4 -br address | awk '{print $1, $3}'; tc qdisc show; ip route; "
    "ip neighbour show nud permanent; } | grep -v eth0 | "
    "sed 's/NO-CARRIER,//; s/,LOWER_UP//; s/ linkdown//; s/ dead//'\n"
    "ls /run/c4bench-switch 2>/dev/null | grep -v -e over -e lock; true"
)
_JOURNAL = "var/lib/c4bench/switches/leaf0/faults"


def missing(*tools: str) -> str:
    """Why there can be no such switch here; "" when there can."""
    return netns_hosts.missing("at", "atd", "flock", "timeout", *tools)


class Scene:
    """The switch and its controller; `command` is run there as a user would."""

    def __init__(self, made: netns_hosts.NetnsHosts, directory: Path, system: str) -> None:
        self.switch, self.controller = made.hosts
        self._made, self._directory = made, directory
        access = load(made.inventory).access
        self._access = {SWITCH: access["n1"], CONTROLLER: access["n2"]}
        self._inventory = _inventory(made, system)
        self.furnish()
        self.equip()

    def run(self, command: str, where: str = SWITCH, *, check: bool = True) -> str:
        """What a shell prints there."""
        with remote.connect(where, self._access[where]) as connection:
            done = connection.run(["sh", "-c", command], timeout_s=120.0, check=check)
        return (done.stdout if check else done.stdout + done.stderr).decode()

    def furnish(self) -> None:
        """What the switch does while it starts: its cables, addresses, queues and routes, and atd."""
        lines = ["set -e", "mkdir -p /run/netns"]
        for number, (port, network) in enumerate(PORTS.items()):
            far = f"far-{port}"
            lines += [
                f"ip netns add {far}",
                f"ip link add {port} address 02:c4:00:00:00:0{number} type veth peer name eth0 netns {far}",
                f"ip address add {network}.1/24 dev {port}",
                f"ip link set {port} up",
                f"ip -n {far} address add {network}.2/24 dev eth0",
                f"ip -n {far} link set eth0 up",
            ]
        hops = " ".join(f"nexthop via {PORTS[port]}.2 dev {port}" for port in ("up0", "up1"))
        shaper = "tbf rate 10gbit burst 1mb limit 8mb"
        self.run(
            "\n".join([*lines, f"ip route add {ROUTE} {hops}", f"tc qdisc add dev up0 root handle 1: {shaper}", "atd"])
        )

    def equip(self) -> None:
        """Give the controller its key, the switch's, and the inventory."""
        files = {name: (self._directory / name).read_text() for name in ("id", "known_hosts")}
        files["switches.yml"] = yaml.safe_dump(self._inventory)
        lines = [f"cat > /root/{name} <<'END'\n{text}END" for name, text in files.items()]
        self.run("\n".join(["umask 077", *lines]), CONTROLLER)

    def fault(self, *words: str) -> str:
        """What `c4bench fault` prints at the controller, errors too."""
        return self.run(_words(words), CONTROLLER, check=False)

    @contextmanager
    def applying(self, *words: str) -> Iterator["subprocess.Popen[str]"]:
        """`c4bench fault apply` at the controller, which is killed at the end of the block if it has not ended."""
        access = self._access[CONTROLLER]
        argv = [
            "ssh",
            *access.ssh_arguments,
            "-i",
            access.key_file,
            f"root@{access.address}",
            _words(("apply", *words)),
        ]
        with subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def state(self) -> list[str]:
        """What a fault could leave at the switch, seen without its SSH server; addresses of links by themselves not."""
        init = self._init(self.switch)
        argv = ["nsenter", f"--target={init}", "--net", "--mount", "--pid", "--root", "--wd=/", "sh", "-c", _STATE]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()

    def leases(self) -> dict[str, float]:
        """The end of each lease in the controller's journal, by id."""
        found = {}
        with suppress(OSError):
            for path in Path(f"/proc/{self._init(self.controller)}/root/{_JOURNAL}").glob("*.json"):
                with suppress(OSError, json.JSONDecodeError):  # it ends, or is being written
                    lease: dict[str, Any] = json.loads(path.read_bytes())["lease"]
                    found[lease["id"]] = lease["expires_s"]
        return found

    def reboot_switch(self) -> None:
        """Cut its power and start it again: what nobody saved is gone."""
        self.switch.reboot()
        self.run("ip neighbour flush all", CONTROLLER)  # its management port has another address now
        self.furnish()

    def kill_sessions(self) -> None:
        """End every session of the switch's SSH server, and what was run in it, at once."""
        for pid in self._processes(self.switch):
            with suppress(OSError):
                if b"sshd: root@notty" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    def kill_controller(self) -> None:
        """End all that runs at the controller but its init and its SSH server's listener, at once."""
        for pid in self._processes(self.controller):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"listener" not in words and b"netns_hosts.py" not in words:
                    os.kill(pid, signal.SIGKILL)

    @contextmanager
    def unplugged(self) -> Iterator[None]:
        """The switch's management link is cut."""
        name = self.switch.name
        subprocess.run(["ip", "link", "set", name, "down"], check=True)
        try:
            yield
        finally:
            subprocess.run(["ip", "link", "set", name, "up"], check=True)

    @staticmethod
    def _init(host: netns_hosts.NetnsHost) -> int:
        return int(Path(f"/proc/{host.process.pid}/task/{host.process.pid}/children").read_text())

    def _processes(self, host: netns_hosts.NetnsHost) -> list[int]:
        """Every process of the host but its init, by the numbers that they have here."""
        place = Path(f"/proc/{self._init(host)}/ns/pid").readlink()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (entry / "ns/pid").readlink() == place and int(entry.name) != self._init(host):
                    found.append(int(entry.name))
        return found


@contextmanager
def scene(directory: Path, *, system: str = "linux") -> Iterator[Scene]:
    """A switch that is up, and its controller; keys and inventory go to `directory`."""
    with netns_hosts.netns_hosts(2, directory) as made:
        yield Scene(made, directory, system)


def wait_for(what: str, holds: Any, timeout_s: float = 30.0) -> float:
    """When it held first. Raises TimeoutError with `what` when it did not in time."""
    until_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > until_s:
            raise TimeoutError(what)
        time.sleep(0.1)
    return time.time()


def _words(words: tuple[str, ...]) -> str:
    argv = [sys.executable, "-m", "c4bench.cli.main", "fault", *words, "--hosts=/root/switches.yml", "--json"]
    return " ".join(argv)


def _inventory(made: netns_hosts.NetnsHosts, system: str) -> dict[str, object]:
    """The switch, beside a host that is never asked."""
    known = yaml.safe_load(made.inventory.read_text())["all"]
    known["vars"]["ansible_ssh_private_key_file"] = "/root/id"
    known["vars"]["ansible_ssh_common_args"] = "-F none -o UserKnownHostsFile=/root/known_hosts"
    facts = {"disruptive": True, "os": system}
    switches = {"hosts": {SWITCH: {"ansible_host": made.hosts[0].address, "c4": facts}}}
    hosts = {"h0": {"ansible_connection": "local", "c4": {"python": "/bin/true"}}}
    return {"all": {"vars": known["vars"], "hosts": hosts, "children": {"switches": switches}}}
