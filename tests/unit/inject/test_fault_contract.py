"""What a new fault, driver or witness must have; a failing test lists what its author still has to add."""

import inspect
import typing

import msgspec
import pytest
from fakes import nic_request, rank_request

from c4bench.errors import UsageError
from c4bench.inject import catalogue
from c4bench.inject.controller import ABSENCE
from c4bench.inject.registry import DRIVERS, WITNESSES, ModuleRegistry
from c4bench.model.fault import ExpectedVerdict, FaultRequest, Parameter, TargetKind
from c4bench.resources import resource

CATALOGUE = catalogue.load()
SINGLE = {name: spec for name, spec in CATALOGUE.specs.items() if not spec.parts}
# What the lab's hosts are to a driver.
LAB = {"rxe", "ethernet", "simulated", "linux"}
COMPONENTS = {
    TargetKind.NIC: {"nic"},
    TargetKind.PORT: {"link", "switch"},
    TargetKind.SWITCH: {"switch"},
    TargetKind.HOST: {"host"},
    TargetKind.PROCESS: {"rank"},
    TargetKind.GPU: {"rank", "gpu"},
}


def request_for(spec):
    """A request for a target of the fault's kind."""
    match spec.target:
        case TargetKind.NIC:
            return nic_request(spec.name)
        case TargetKind.PROCESS:
            return rank_request(spec.name)
        case TargetKind.PORT:
            return FaultRequest(spec.name, "leaf0", port="up1", netns="/run/netns/leaf0")
        case TargetKind.GPU:
            return FaultRequest(spec.name, "h5", gpu=0)
    return FaultRequest(spec.name, "h5")


def missing_in_fault(spec):
    """What a catalogue file lacks, a line each."""
    yield from missing_in_drivers(spec)
    if spec.witness not in {*WITNESSES, ABSENCE}:
        yield f"witness: define it in c4bench/inject/witness/ with @witness({spec.witness!r})"
    if spec.verdict and spec.verdict.component not in COMPONENTS[spec.target]:
        yield f"verdict: component of a {spec.target} fault is one of {sorted(COMPONENTS[spec.target])}"
    for name, parameter in spec.parameters.items():
        if parameter.type == "number" and None in (parameter.minimum, parameter.maximum):
            yield f"parameters: give {name} a minimum and a maximum"
    try:
        catalogue.Catalogue({spec.name: spec}).resolve(request_for(spec))
    except UsageError as error:
        yield f"parameters: a default does not fit: {error}"


def missing_in_drivers(spec):
    if not spec.drivers:
        yield "drivers: name one for each kind of hardware"
    for name in sorted(set(spec.drivers.values()) - set(DRIVERS)):
        yield f"drivers: define it in c4bench/inject/drivers/{name.partition('.')[0]}.py with @driver({name!r})"
    for hardware in sorted({*spec.seen} - set(spec.drivers)):
        yield f"seen: there is no driver for {hardware}"
    if spec.drivers and not spec.not_in_lab and not LAB & set(spec.drivers):
        yield "not_in_lab: say why the lab cannot carry it"


def missing_in_readme(spec):
    """The row that the table in faults/README.md lacks."""
    hardware = [*(f"{kind}: not yet" for kind in spec.unseen), *(f"{kind}: seen" for kind in spec.seen)]
    row = f"| `{spec.name}` | {spec.summary} | {'no' if spec.not_in_lab else 'yes'} | {', '.join(hardware) or 'none'} |"
    if row not in resource("faults", "README.md").read_text().splitlines():
        yield f"faults/README.md: add the row {row}"


def missing_in_witness(name, factory):
    """What a registered witness lacks, a line each."""
    made = factory if inspect.isclass(factory) else typing.get_type_hints(factory).get("return")
    for method in ("before", "during", "after"):
        if not callable(getattr(made, method, None)):
            yield f"witness {name}: {factory.__qualname__} makes no object with `{method}` (see witness.base.Witness)"


def missing_in_registry(registry, kind, named):
    """A line for each registered entry without a docstring, and for each that no catalogue file names."""
    for name in registry:
        if not inspect.getdoc(registry[name]):
            yield f"{kind} {name}: write its docstring"
        if name not in named:
            yield f"{kind} {name}: no file in faults/ names it; name it there or remove it"


@pytest.mark.parametrize("name", sorted(SINGLE))
def test_a_fault_has_all_its_parts(name):
    """A fault has drivers, a witness, a fitting verdict, and parameters whose defaults are in range."""
    assert [*missing_in_fault(CATALOGUE.specs[name])] == []


@pytest.mark.parametrize("name", sorted(CATALOGUE.specs))
def test_a_fault_is_in_the_readme(name):
    """The table says what the fault is, whether the lab carries it, and where its drivers were seen to work."""
    assert [*missing_in_readme(CATALOGUE.specs[name])] == []


@pytest.mark.parametrize("name", sorted(WITNESSES))
def test_a_witness_measures_before_during_and_after(name):
    """Whatever is registered as a witness makes an object with the three methods."""
    assert [*missing_in_witness(name, WITNESSES[name])] == []


def test_every_driver_and_witness_is_used_and_documented():
    """A driver or witness that no fault names is dead code."""
    drivers = {driver for spec in SINGLE.values() for driver in spec.drivers.values()}
    witnesses = {spec.witness for spec in SINGLE.values()}
    assert [*missing_in_registry(DRIVERS, "driver", drivers)] == []
    assert [*missing_in_registry(WITNESSES, "witness", witnesses)] == []


def test_the_author_of_an_incomplete_fault_is_told_everything_that_is_missing():
    """Each omission gives its own line, with the file to write and the name to register."""
    spec = msgspec.structs.replace(
        CATALOGUE.specs["nic.rate"],
        name="nic.new",
        drivers={"brand_x": "brand_x.dim"},
        seen=("brand_y",),
        witness="dimness",
        verdict=ExpectedVerdict(CATALOGUE.specs["nic.rate"].verdict.syndrome, "host"),
        parameters={"level": Parameter("How dim.", "number", default=1)},
    )
    assert [*missing_in_fault(spec), *missing_in_readme(spec)] == [
        "drivers: define it in c4bench/inject/drivers/brand_x.py with @driver('brand_x.dim')",
        "seen: there is no driver for brand_y",
        "not_in_lab: say why the lab cannot carry it",
        "witness: define it in c4bench/inject/witness/ with @witness('dimness')",
        "verdict: component of a nic fault is one of ['nic']",
        "parameters: give level a minimum and a maximum",
        f"faults/README.md: add the row | `nic.new` | {spec.summary} | yes | brand_x: not yet, brand_y: seen |",
    ]
    bare = msgspec.structs.replace(spec, drivers={}, seen=(), witness=ABSENCE, verdict=None, parameters={})
    assert [*missing_in_fault(bare)] == ["drivers: name one for each kind of hardware"]


def test_the_author_of_an_incomplete_witness_is_told_what_is_missing():
    """A class without `after` and without a docstring, which no fault names, gives three lines."""

    class Half:
        def before(self): ...

        def during(self, onset_s): ...

    registry = ModuleRegistry("c4bench.inject.witness", "c4bench.witnesses", "a witness", 1)
    registry.add("half", Half)
    assert [*missing_in_witness("half", Half)] == [
        f"witness half: {Half.__qualname__} makes no object with `after` (see witness.base.Witness)"
    ]
    assert [*missing_in_registry({"half": Half}, "witness", set())] == [
        "witness half: write its docstring",
        "witness half: no file in faults/ names it; name it there or remove it",
    ]
    with pytest.raises(ValueError, match="'half' is registered twice"):
        registry.add("half", Half)


def test_a_module_is_found_without_being_listed(tmp_path, monkeypatch):
    """A registry imports every module of its package, so a new file needs no entry elsewhere."""
    package = tmp_path / "found_drivers"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "fresh.py").write_text("import builtins\nbuiltins.fresh_registry.add('fresh.dim', print)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = ModuleRegistry("found_drivers", "c4bench.drivers", "a driver", 2)
    monkeypatch.setattr("builtins.fresh_registry", registry, raising=False)
    assert dict(registry) == {"fresh.dim": print}
