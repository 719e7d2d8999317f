"""The lock that an environment is made from, held against the ranges of pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAMED = sorted(
    {
        *PROJECT["build-system"]["requires"],
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["hosts"],
        *PROJECT["project"]["optional-dependencies"]["plan"],
        *PROJECT["dependency-groups"]["dev"],
        *PROJECT["dependency-groups"]["setup"],
    }
)


def entries():
    """The requirement and the hashes of each package that is locked."""
    lines = "\n".join(line for line in TEXT.splitlines() if not line.lstrip().startswith("#"))
    for entry in lines.replace("\\\n", " ").splitlines():
        words = entry.split(" --hash=")
        yield Requirement(words[0]), [word.strip() for word in words[1:]]


LOCKED = {canonicalize_name(requirement.name): requirement for requirement, _ in entries()}


@pytest.mark.parametrize("named", NAMED)
def test_what_the_project_names_is_locked_within_its_range(named):
    """Each dependency that set-up installs has one locked version, on every Linux, and its range allows it."""
    wanted = Requirement(named)
    locked = LOCKED[canonicalize_name(wanted.name)]
    (pin,) = locked.specifier
    assert pin.operator == "=="
    assert wanted.specifier.contains(pin.version)
    assert locked.marker is None or locked.marker.evaluate({"sys_platform": "linux", "python_version": "3.13"})


def test_each_entry_has_one_version_and_its_hashes():
    """No package can be installed from the lock that is not the one which was locked."""
    found = list(entries())
    assert len(found) == len(LOCKED) > len(NAMED)
    for requirement, hashes in found:
        assert [pin.operator for pin in requirement.specifier] == ["=="], requirement
        assert hashes, requirement
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes), requirement


def test_no_registry_is_named():
    """Where packages come from is the machine's choice, a mirror or the public index."""
    assert "://" not in TEXT
    assert "index-url" not in TEXT
