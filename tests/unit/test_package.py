"""What is in the wheel, and which Pythons it names."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from night_cases import at_night
from packaging.requirements import Requirement

import c4bench

ROOT = Path(__file__).parents[2]
BUILD = "import sys, hatchling.build; hatchling.build.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with the wheel's files, as pip would lay them out."""
    folder = tmp_path_factory.mktemp("installed")
    wheel.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as opened:
        yield opened


def test_the_wheel_holds_types_and_data(wheel):
    """Type checkers find `py.typed`; faults, playbooks, templates and schemas are where `resource` looks for them."""
    names = set(wheel.namelist())
    data = {path.relative_to(ROOT) for folder in ("faults", "playbooks") for path in (ROOT / folder).glob("*.yml")}
    data |= {path.relative_to(ROOT) for path in (ROOT / "reports/schema").iterdir()}
    assert len(data) > 50
    text = "c4bench/workload/models/text/"
    assert {"c4bench/py.typed", f"{text}paradise-lost.txt", f"{text}README.md"} <= names
    assert {f"c4bench/data/{path}" for path in data} <= names
    page = {path.relative_to(ROOT).as_posix() for path in (ROOT / "c4bench/live/static").iterdir()}
    assert len(page) > 8
    assert page | {"c4bench/data/reports/templates/measurements.yml"} <= names
    assert not [name for name in names if name.startswith("tests/")]


def test_the_wheel_holds_the_scenarios(wheel):
    """The scenarios are in the package `c4bench.scenarios`, for `pytest --pyargs`, but for those that judge c4bench."""
    kept = ROOT / "tests/scenarios"
    files = [path.relative_to(kept) for path in kept.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    ours = {"grading", "every_topology.py"}
    packed = {f"c4bench/scenarios/{path}" for path in files if path.parts[0] not in ours}
    assert len(packed) > 40
    names = {name for name in wheel.namelist() if name.startswith("c4bench/scenarios/")}
    assert names == packed | {"c4bench/scenarios/__init__.py"}


def test_what_makes_the_project_is_in_the_source_distribution_only(wheel, tmp_path):
    """The wheel has the package and its metadata; the source distribution also `tools` and what judges c4bench."""
    assert {name.partition("/")[0].partition("-")[0] for name in wheel.namelist()} == {"c4bench"}
    subprocess.run([sys.executable, "-c", BUILD.replace("wheel", "sdist"), str(tmp_path)], cwd=ROOT, check=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"tools/__main__.py", "tests/scenarios/grading/test_campaign.py"} <= names


def test_the_package_needs_few_others():
    """An installation without extras names nine packages; each of them brings its own (docs/adr/0007)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {Requirement(text).name for text in project["dependencies"]} == {
        "numpy",
        "pyyaml",
        "pytest",
        "fabric",
        "cryptography",
        "msgspec",
        "websockets",
        "jinja2",
        "markupsafe",
    }


def pytest_elsewhere(installed, folder, *words):
    """Run pytest without a checkout, with the wheel's files on the path; return the exit code and the output."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--co", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("c4bench.scenarios.hosts", "test_deploy.py::test_agents_are_deployed"),
        *at_night(
            ("c4bench.scenarios", "collective/test_bandwidth.py::test_ring_is_exact"),
            ("c4bench.scenarios.hosts.test_deploy", "::test_agents_are_deployed"),
        ),
    ],
)
def test_the_scenarios_of_the_wheel_can_be_collected(installed, tmp_path, module, found):
    """Without a checkout pytest finds and imports the files of `c4bench.scenarios`, all or those of one area."""
    pytest.importorskip("pyverbs", reason="pyverbs is not installed")
    code, said = pytest_elsewhere(installed, tmp_path, "--pyargs", module)
    assert code == 0, said[-3000:]
    assert found in said


def test_scenarios_of_the_package_are_named_as_modules(installed, tmp_path):
    """By path pytest would take their folder for a project: nobody is told to write settings there."""
    path = installed / "c4bench/scenarios/hosts/test_deploy.py"
    code, said = pytest_elsewhere(installed, tmp_path, str(path), "--hosts=softroce")
    assert code == 2
    advice = "scenarios of the package are named as modules: --pyargs c4bench.scenarios.hosts"
    assert said == f"c4bench: --hosts: {advice}\n"


def test_ansible_is_an_extra(wheel):
    """The lab installs without it; `c4bench[hosts]` brings it."""
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    needed = [line for line in wheel.read(metadata).decode().splitlines() if line.startswith("Requires-Dist: ansible")]
    assert len(needed) == 2
    assert all(line.endswith("extra == 'hosts'") for line in needed)


def test_the_version_is_that_of_the_code(wheel):
    """`c4bench.__version__` is the one place where the version stands."""
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    assert f"\nVersion: {c4bench.__version__}\n" in wheel.read(metadata).decode()


def test_every_python_that_the_package_names_is_tested():
    """The classifiers are the versions of the workflow's matrix, and begin with the oldest that may install it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [text.rpartition(" :: ")[2] for text in project["classifiers"] if text.startswith("Programming Language")]
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    assert named == workflow["jobs"]["python"]["strategy"]["matrix"]["python"]
    assert project["requires-python"] == f">={named[0]}"
