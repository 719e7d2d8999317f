"""c4bench: prove that faults on an RDMA fabric are found, named and routed around, on hosts or in an embedded lab.

The names below are the public API (docs/reference/python.md); everything else is private. Each is imported when it is
first used.
"""

from importlib import import_module

__version__ = "0.1.0"

TYPE_CHECKING = False  # as type checkers see `typing`'s, whose import takes longer than all else here

if TYPE_CHECKING:
    from c4bench.attribution.weigh import Observation, Rates, crossed
    from c4bench.c4d.offline import detect
    from c4bench.c4d.signs.added import JobSpan
    from c4bench.c4p.knowledge.atlas import Atlas
    from c4bench.c4p.placement.planner import Planner
    from c4bench.collective.options import Options as CollectiveOptions
    from c4bench.control.paths.switches import PortCounters
    from c4bench.errors import C4Error, InconclusiveError, UnhealthyError, UsageError
    from c4bench.evidence.formats import FileFormat as EvidenceFormat
    from c4bench.inject.actions import Plan as DriverPlan
    from c4bench.inject.actions import Run, Signal
    from c4bench.inject.catalogue import read as read_fault
    from c4bench.inject.interfaces import InterfaceTarget
    from c4bench.inject.processes import ProcessTarget
    from c4bench.inject.processes import find as find_process
    from c4bench.inject.protocol import Applied as Fault
    from c4bench.inject.witness.base import Aftermath, Evidence
    from c4bench.inventory import Inventory
    from c4bench.inventory import load as load_inventory
    from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
    from c4bench.model.evidence import MemberEvidence, Reading, SourceFile
    from c4bench.model.fabric import Flow
    from c4bench.model.fault import FaultRequest, FaultSpec
    from c4bench.model.measurement import Measurement
    from c4bench.model.recording import Evaluated, Record
    from c4bench.model.window import Window
    from c4bench.record.run import RunDirectory
    from c4bench.record.telemetry import read_telemetry
    from c4bench.script import Lab, LabJob, lab
    from c4bench.verbs.addressing import PathAttributes
    from c4bench.workload.context import RankContext

__all__ = [
    "Aftermath",
    "Atlas",
    "C4Error",
    "CollectiveOptions",
    "Component",
    "Diagnosis",
    "DriverPlan",
    "Evaluated",
    "Evidence",
    "EvidenceFormat",
    "Fault",
    "FaultRequest",
    "FaultSpec",
    "Flow",
    "InconclusiveError",
    "InterfaceTarget",
    "Inventory",
    "JobSpan",
    "Lab",
    "LabJob",
    "Measurement",
    "MemberEvidence",
    "Observation",
    "PathAttributes",
    "Planner",
    "PortCounters",
    "ProcessTarget",
    "RankContext",
    "Rates",
    "Reading",
    "Record",
    "Run",
    "RunDirectory",
    "Signal",
    "SourceFile",
    "Syndrome",
    "UnhealthyError",
    "UsageError",
    "Window",
    "crossed",
    "detect",
    "find_process",
    "lab",
    "load_inventory",
    "read_fault",
    "read_telemetry",
]
# Where each is; `lab` is the package of that name, which can be called.
_NAMES = {
    "attribution.weigh": ("Observation", "Rates", "crossed"),
    "c4d.offline": ("detect",),
    "c4d.signs.added": ("JobSpan",),
    "c4p.knowledge.atlas": ("Atlas",),
    "c4p.placement.planner": ("Planner",),
    "collective.options": ("CollectiveOptions=Options",),
    "control.paths.switches": ("PortCounters",),
    "errors": ("C4Error", "InconclusiveError", "UnhealthyError", "UsageError"),
    "evidence.formats": ("EvidenceFormat=FileFormat",),
    "inject.actions": ("DriverPlan=Plan", "Run", "Signal"),
    "inject.catalogue": ("read_fault=read",),
    "inject.interfaces": ("InterfaceTarget",),
    "inject.processes": ("ProcessTarget", "find_process=find"),
    "inject.protocol": ("Fault=Applied",),
    "inject.witness.base": ("Aftermath", "Evidence"),
    "inventory": ("Inventory", "load_inventory=load"),
    "model.diagnosis": ("Component", "Diagnosis", "Syndrome"),
    "model.evidence": ("MemberEvidence", "Reading", "SourceFile"),
    "model.fabric": ("Flow",),
    "model.fault": ("FaultRequest", "FaultSpec"),
    "model.measurement": ("Measurement",),
    "model.recording": ("Evaluated", "Record"),
    "model.window": ("Window",),
    "record.run": ("RunDirectory",),
    "record.telemetry": ("read_telemetry",),
    "script": ("Lab", "LabJob"),
    "verbs.addressing": ("PathAttributes",),
    "workload.context": ("RankContext",),
}
_WHERE = {
    name.partition("=")[0]: (f"c4bench.{module}", name.rpartition("=")[2])
    for module, names in _NAMES.items()
    for name in names
}


def __getattr__(name: str) -> object:
    if name == "lab":
        return import_module("c4bench.lab")
    if name not in _WHERE:
        raise AttributeError(f"module 'c4bench' has no attribute {name!r}")
    module, own_name = _WHERE[name]
    value = globals()[name] = getattr(import_module(module), own_name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
