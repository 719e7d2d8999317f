"""What the kernel and the GPUs' driver print on a host: `dmesg`, `sysctl`, `nvidia-smi`, and NCCL's topology file."""

import csv
import io
import re
from collections.abc import Iterator
from xml.etree import ElementTree

from c4bench.doctor.facts import Fact, Gpu, KernelLine, Nearness, Setting
from c4bench.doctor.outputs.layout import About, pairs, whole_in
from c4bench.inventory.cabling.nccl import near_nics

DMESG = re.compile(
    r"NVRM: Xid|mlx5_core [0-9a-f]{4}:[0-9a-f]{2}:|\bLinux version \d|^\[\s*\d+\.\d{6}\]"
    r"|^\[[A-Z][a-z]{2} [A-Z][a-z]{2} .{10,20}\]|\bkernel: |^kern\s*:\w+\s*:",
    re.MULTILINE,
)
SYSCTL = re.compile(r"^(?:net\.(?:ipv4|core)|kernel|vm)\.[\w.-]+ ?= ?", re.MULTILINE)
SMI = re.compile(
    r"^Unable to determine the device handle for"
    r"|^\|\s*NVIDIA-SMI \d|^=+NVSMI LOG=+|^[ \t]*Product Name\s+: |^GPU \d+: .*\(UUID: GPU-",
    re.MULTILINE,
)
SMI_CSV = re.compile(
    r"^(?:index|name|uuid|pci\.bus_id|gpu_uuid|timestamp)(?:, ?[\w.]+(?: \[[^\]\n]+\])?)+[ \t]*$", re.MULTILINE
)
NCCL_TOPOLOGY = re.compile(r"<system version=\"\d+\">\s*<cpu ")
# NVIDIA's list of Xid errors, by what they ask for.
_XIDS = {
    "gpu lost": {79},
    "gpu memory": {48, 63, 64, 92, 94, 95, 140, 160},
    "gpu link": {74, 144, 145, 146, 147, 148, 149, 150},
    "gpu firmware": {61, 62, 109, 119, 120, 136, 143},
    "gpu program": {13, 31, 43, 45, 68, 69},
}
_XID = re.compile(r"NVRM: Xid \(([^)]{1,40})\): (\d{1,3})\b.*")
_LONGEST = 400  # characters of a line
_BUS = r"(?P<subject>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)"
_LINES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "link down",
        re.compile(
            r"(?:mlx5_core|bnxt_en|ice|mlx4_en|be2net)\S*\s+\S*:?\s*(?P<subject>[\w.-]+): (?:NIC )?Link (?:is )?[Dd]own"
        ),
    ),
    (
        "link down",
        re.compile(r"(?P<subject>mlx[45]_\d+|\b(?:en|eth|ib)[\w.-]*\d\w*).{0,20}: [Ll]ink (?:is )?down", re.IGNORECASE),
    ),
    (
        "module",
        re.compile(
            _BUS
            + r".{0,40}Port module event(?:\[error\])?: module \d+, "
            + r".*(?:error|unplugged|[Hh]igh [Tt]emp|[Bb]ad|[Ss]horted)"
        ),
    ),
    ("nic power", re.compile(_BUS + r".*(?:insufficient power|Detected insufficient power)")),
    (
        "nic failed",
        re.compile(
            "mlx5_core " + _BUS + r".*(?:health compromised|device's health|firmware fatal|Fatal error|assert_var|"
            r"synd(?:rome)? 0x(?!0\b)|command (?:timeout|entry leak)|timeout\. Will cause a leak|failed reset)",
            re.IGNORECASE,
        ),
    ),
    ("bus error", re.compile(_BUS + r".*(?:AER|PCIe Bus Error): .*(?:severity=)?(?:Uncorrect\w+|Fatal|Non-Fatal)")),
    ("bus corrected", re.compile(_BUS + r".*PCIe Bus Error: severity=Correct\w+")),
    ("memory", re.compile(r"EDAC (?P<subject>[\w#]+): \d+ UE|(?P<other>Hardware Error)\]?:.*[Uu]ncorrected")),
    ("out of memory", re.compile(r"(?P<subject>Out of memory): Killed process \d+")),
)
_DRIVER_LOST = re.compile(
    r"Unable to determine the device handle for (?:GPU ?|gpu )?(\S+?):? .*|^.*GPU is lost.*", re.MULTILINE
)
_ROW = re.compile(
    r"^\|\s+(\d{1,3})\s+(\S.{0,60}?)\s+(?:On|Off)?\s*\|\s+([0-9A-Fa-f]{8}:[0-9A-Fa-f:.]+)\s+\w+\s+\|\s+(\S+)\s+\|",
    re.MULTILINE,
)
_SLOWED = ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown")
_UNCORRECTED = re.compile(
    r"(?:SRAM|DRAM|Total|Device Memory)?\s*Uncorrectable(?: Parity| SEC-DED)?$|^Double Bit ECC$|^Uncorrectable Error$"
)
_PENDING = re.compile(r"Pending$|Remapping Failure Occurred$|Pending Page Blacklist$")


def dmesg(text: str, _: About) -> Iterator[Fact]:
    """Lines of the kernel's log about GPUs, NICs, the bus and memory."""
    for line in text.splitlines():
        xid = _XID.search(line)
        if xid:
            number = int(xid[2])
            kind = next((kind for kind, numbers in _XIDS.items() if number in numbers), "gpu other")
            yield KernelLine(xid[1], kind, xid[0])
            continue
        for kind, pattern in _LINES:
            match = pattern.search(line[:_LONGEST])
            if match:
                yield KernelLine(match["subject"] or match.groupdict().get("other") or "", kind, match[0])
                break


def sysctl(text: str, _: About) -> Iterator[Fact]:
    """Settings in `sysctl -a`."""
    for name, value in pairs(text, "="):
        if SYSCTL.match(f"{name} ="):
            yield Setting(name, value)


def nvidia_smi(text: str, _: About) -> Iterator[Fact]:
    """GPUs in `nvidia-smi`, `nvidia-smi -L` and `nvidia-smi -q`."""
    for match in _DRIVER_LOST.finditer(text):
        yield Gpu(match[1] or "a GPU", (match[0].strip(),))
    for match in _ROW.finditer(text):
        lost = ("its state cannot be read (ERR!)",) if "ERR!" in text[match.start() : match.end() + 200] else ()
        errors = whole_in(match[4]) if match[4].isdecimal() else 0
        counted = (f"{errors} uncorrected memory errors since the last reset",) if errors else ()
        yield Gpu(f"{match[1]} ({match[3]})", lost + counted)
    for block in re.split(r"^GPU (?=[0-9A-Fa-f]{8}:)", text, flags=re.MULTILINE)[1:]:
        yield Gpu(block.split(None, 1)[0], tuple(_troubles(block)))
    for match in re.finditer(r"^GPU (\d+): (.*) \(UUID: ", text, re.MULTILINE):
        yield Gpu(f"{match[1]} ({match[2]})")


def _troubles(block: str) -> Iterator[str]:
    """What a GPU's block of `nvidia-smi -q` reports; of ECC errors only those since the last reset (Volatile)."""
    heading, headings = "", ("Volatile", "Aggregate", "Remapped Rows", "Retired Pages", "Clocks")
    for line in block.splitlines():
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not colon:
            heading = name if name.startswith(headings) else heading
            continue
        if heading == "Volatile" and _UNCORRECTED.search(name) and value.isdecimal() and int(value):
            yield f"{value[:12]} uncorrected memory errors since the last reset ({name})"
        if heading in {"Remapped Rows", "Retired Pages"} and _PENDING.search(name) and value == "Yes":
            yield f"{heading}: {name}"
        if name in _SLOWED and value == "Active":
            yield f"is slowed down: {name}"


def smi_csv(text: str, _: About) -> Iterator[Fact]:
    """GPUs in `nvidia-smi --query-gpu=... --format=csv`."""
    heading_at = SMI_CSV.search(text)
    rows = list(csv.reader(io.StringIO(text[heading_at.start() if heading_at else 0 :])))
    heading = [cell.strip().partition(" [")[0] for cell in rows[0]] if rows else []
    for row in rows[1:]:
        values = dict(zip(heading, (cell.strip() for cell in row), strict=False))
        name = next((values[key] for key in ("pci.bus_id", "index", "name") if values.get(key)), "")
        if name:
            yield Gpu(name, tuple(_csv_troubles(values)))


def _csv_troubles(values: dict[str, str]) -> Iterator[str]:
    for key, value in values.items():
        if key.startswith("ecc.errors.uncorrected.volatile") and value.isdecimal() and int(value):
            yield f"{value[:12]} uncorrected memory errors since the last reset ({key})"
        if key.startswith(("clocks_throttle_reasons.hw_", "clocks_event_reasons.hw_")) and value == "Active":
            yield f"is slowed down: {key}"


def nccl_topology(text: str, _: About) -> Iterator[Fact]:
    """GPUs and the NICs below their PCIe switches, in the XML that NCCL dumps."""
    try:
        near = near_nics(text)
    except ElementTree.ParseError:
        return
    for gpu, nics in near.items():
        yield Nearness(f"GPU {gpu}", nics)
