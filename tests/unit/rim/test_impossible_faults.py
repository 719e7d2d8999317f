"""Scenarios whose faults these hosts cannot have."""

from types import SimpleNamespace

import pytest

from c4bench.errors import UsageError
from c4bench.inject.feasibility import Feasibility
from c4bench.inject.places import Place
from c4bench.model.fabric import Host, Nic
from c4bench.pytest_plugin import scope
from c4bench.pytest_plugin.fixtures import obstacle

WHY = "h5/0: nic.rate has no driver for mlx5_core"


def nested():
    def inject_later():
        return "nic.rate"

    return inject_later


def plain():
    return "nic.down"


def item(function, *marks, **params):
    """A scenario that injects, as pytest has it."""
    return SimpleNamespace(
        function=function,
        fixturenames=("inject",),
        callspec=SimpleNamespace(params=params),
        iter_markers=lambda _: [pytest.mark.needs(*marks).mark] if marks else [],
        nodeid="test_x.py::test_x",
    )


TENANCY = SimpleNamespace(
    shortage=lambda *_: "", faults=lambda: Feasibility({"nic.rate": {"h5/0": WHY.partition(": ")[2]}})
)


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        (item(nested), f"no-fault:nic.rate: {WHY}"),
        (item(plain, fault="nic.rate"), f"no-fault:nic.rate: {WHY}"),
        (item(plain, "fault:nic.rate"), f"no-fault:nic.rate: {WHY}"),
        (item(plain), ""),
    ],
)
def test_a_scenario_is_skipped_with_the_drivers_reason(scenario, reason):
    """Its faults are those of its code, of its parameters and of its marks."""
    assert scope.lacking(scenario, TENANCY) == reason


def test_a_fault_may_be_required():
    """The skip for want of a required fault is a failure; of another fault it is not."""
    report = pytest.TestReport("a::b", ("a", 1, "b"), {}, "skipped", ("a", 1, f"no-fault:nic.rate: {WHY}"), "setup")
    assert scope.required(report, ["fault:nic.rate"])
    assert not scope.required(report, ["fault:nic.loss"])


def test_a_fault_of_no_catalogue_cannot_be_required():
    """A misspelt name would forbid nothing."""
    scope.check_names(["rdma", "fault:nic.rate"])
    with pytest.raises(UsageError, match=r"there is no fault 'nic.rat'.*nic.rate"):
        scope.check_names(["fault:nic.rat"])


def test_parameters_that_are_not_the_defaults_are_planned_by_themselves():
    """Only where hosts plan at all, for what has parameters, and where the fault can be had with the default ones."""
    nic, asked = Nic("h5", 0, "mlx5_0", "h5n0", "10.1.1.1", 25e9), []
    place = Place(Host("h5", "10.255.0.15", (nic,)), nic)
    injector = SimpleNamespace(obstacle=lambda *words: asked.append(words) or "it limits only what it sends")

    def why(known, **parameters):
        return obstacle(injector, known, "nic.rate", place, parameters)

    assert why(Feasibility({}), direction="rx") == ""
    assert why(Feasibility({"nic.rate": {"h5/0": WHY}}, planned=True), direction="rx") == WHY
    assert why(Feasibility({}, planned=True)) == ""
    assert not asked
    assert why(Feasibility({}, planned=True), direction="rx") == "it limits only what it sends"
    assert asked == [("nic.rate", place, {"direction": "rx"})]
