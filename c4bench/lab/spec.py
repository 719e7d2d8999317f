"""What the machine tells the booted kernel, and hears back: two small files in the run directory's `lab` folder."""

import msgspec

from c4bench.lab.places import Place
from c4bench.lab.topology import Topology

SPEC_FILE = "spec.json"
RESULT_FILE = "result.json"
LOG_FILE = "lab.log"  # crashes, boots and routes, in lab time
HOST_LOGS = "hosts"  # folder of NAME.log: the services of each host since its boot
CONTROL_SOCKET = "/run/c4/lab.sock"
INVENTORY = "/run/c4/inventory.yml"
MACHINE_ROOT = "/run/c4/machine"  # the machine's file system, which cannot be written to
READY_MARK = b"\x1ec4bench:ready\n"  # said on the console when the lab is up; the machine's side takes it out


class LabSpec(msgspec.Struct, frozen=True):
    """One lab: a fabric, and the command to run in it.

    Whatever is a path here is one in the lab, by the names that `places` have there. `python` is our interpreter,
    `directory` where the command starts; `trust` holds the certificates the hosts come with, used when `agents` start
    with the hosts; `interactive` gives the command the machine's terminal.
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


class LabResult(msgspec.Struct, frozen=True):
    """How the command ended, and when on the virtual clock (seconds since the kernel started)."""

    exit_code: int
    ready_s: float
    ended_s: float
    error: str = ""
