"""What the machine and the booted kernel exchange: two small files in the run directory's `lab` folder."""

import msgspec

from c4bench.lab.places import Place
from c4bench.lab.topology import Topology

SPEC_FILE = "spec.json"
RESULT_FILE = "result.json"
LOG_FILE = "lab.log"  # crashes, boots and routes, in lab time
HOST_LOGS = "hosts"  # folder of NAME.log: the services of each host since its boot
CONTROL_SOCKET = "/run/c4/lab.sock"
ROUTING_DAEMONS = "/run/frr"  # where switches have some
INVENTORY = "/run/c4/inventory.yml"
MACHINE_ROOT = "/run/c4/machine"  # the machine's file system, which cannot be written to
READY_MARK = b"\x1ec4bench:ready\n"  # printed on the console when the lab is up; the machine's side removes it


class LabSpec(msgspec.Struct, frozen=True):
    """One lab: a fabric, and the command to run in it.

    All paths are those in the lab, where `places` have their own names. `python` is our interpreter; the command starts
    in `directory`. `trust` holds the hosts' certificates, which are used when `agents` start with the hosts.
    `interactive` gives the command the machine's terminal. `lldp_client` is the copy of lldpcli for hosts and switches.
    """

    topology: Topology
    places: tuple[Place, ...]
    python: str
    command: tuple[str, ...]
    directory: str
    environment: dict[str, str]
    trust: str
    agents: bool
    seed: int
    interactive: bool = False
    lldp_client: str = ""


class LabResult(msgspec.Struct, frozen=True):
    """How the command ended, and when on the virtual clock (seconds since the kernel started)."""

    exit_code: int
    ready_s: float
    ended_s: float
    error: str = ""


class Report(msgspec.Struct, frozen=True):
    """Random numbers in hexadecimal, the rate of a transfer's payload, and when it ended on the lab's clock."""

    drawn: list[str]
    goodput_bps: float
    ended_ns: int
