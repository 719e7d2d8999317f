"""The verbs constants with old and new versions of pyverbs."""

import sys
from types import ModuleType

import pytest

from c4bench.verbs import device


@pytest.fixture
def generations(monkeypatch):
    """Put a fake pyverbs with these modules in place of whatever is installed."""

    def install(**modules):
        package = ModuleType("pyverbs")
        monkeypatch.setitem(sys.modules, "pyverbs", package)
        for name in ("enums", "libibverbs_enums"):
            monkeypatch.delitem(sys.modules, f"pyverbs.{name}", raising=False)
        for name, module in modules.items():
            setattr(package, name, module)

    return install


@pytest.mark.parametrize("name", ["enums", "libibverbs_enums"])
def test_constants_are_found_in_either_module(generations, monkeypatch, name):
    """The constants come from the module that the installed generation has."""
    module = ModuleType(name)
    module.IBV_QPS_RTS = 3
    module.ibv_qp_state = object
    generations(**{name: module})
    monkeypatch.setattr(device, "ENUMS", device._load_enums())
    assert device.names("IBV_QPS_") == {3: "RTS"}


def test_the_newer_module_is_preferred(generations):
    """Where both are there, the one of the newer generation is used."""
    old, new = ModuleType("enums"), ModuleType("libibverbs_enums")
    generations(enums=old, libibverbs_enums=new)
    assert device._load_enums() is new
