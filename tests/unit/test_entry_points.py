"""A package of a stranger adds to each of nine kinds by name, and a bad one costs one line."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import msgspec
import pytest
import yaml
from night_cases import at_night

from c4bench import extensions
from c4bench.cli.main import main
from c4bench.model.step import StepOp
from c4bench.model.telemetry import NicRecord
from c4bench.record.telemetry import to_lines
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tests/extension"
INVENTORY = """
all:
  hosts:
    h0: {c4: {nics: [{device: r0, netdev: n0, address: 10.0.0.1, rate: 10gbit}]}}
    h1: {c4: {nics: [{device: r1, netdev: n1, address: 10.0.0.2, rate: 10gbit}]}}
  children:
    switches: {hosts: {leaf0: {c4: {counters: acme}}}}
"""
# Asks each registry for the package's entry, as those who look names up do.
ASK_ALL = """
import msgspec
from c4bench.control.paths.switches import READERS
from c4bench.inject.catalogue import load
from c4bench.inject.registry import DRIVERS, WITNESSES
from c4bench.verbs.path_controls import choose
from c4bench.workload import programs
class Device:
    name, vendor, raw = "acme0", 0xACE, None
    def __getattr__(self, name): raise AttributeError(name)
print(load().find("acme.freeze").witness, DRIVERS["acme.freeze"].__name__, WITNESSES["acme.frozen"].__name__)
print(programs.program("acme.sums").__name__, READERS["acme"]("leaf0", lambda argv: b"Ethernet0 7 1 9"))
from c4bench.verbs.path_controls import PATH_CONTROLS
print([name for name, control in PATH_CONTROLS.items() if name == "acme.port" and not control.obstacle(Device())])
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which the package of tests/extension is installed, from a folder outside of the repository."""
    folder = tmp_path_factory.mktemp("stranger")
    shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    words = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder / "site")]
    subprocess.run([sys.executable, "-m", "pip", "install", *words, str(folder / "source")], check=True)
    return folder / "site"


def python(site, *words):
    """A Python that has the package installed, run with these words: exit code, output and errors."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *words], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def c4bench(site, *words):
    return python(site, "-m", "c4bench.cli.main", *map(str, words))


def broken(folder, points, **modules):
    """A package called `broken` in `folder`, with these entry points and modules, as pip would lay it out."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "broken-2.0.dist-info").mkdir(parents=True)
    (folder / "broken-2.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 2.0\n")
    lines = [f"[{group}]\n{name} = {value}\n" for group, name, value in points]
    (folder / "broken-2.0.dist-info/entry_points.txt").write_text("".join(lines))
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_every_kind_is_found_by_its_name(site):
    """Fault, driver, witness, workload, counter reader and path control are what their names stand for."""
    code, output, errors = python(site, "-c", ASK_ALL)
    assert (code, errors) == (0, "")
    counters = "{'Ethernet0': PortCounters(received_bytes=7, received_packets=1, sent_bytes=9)}"
    assert output.splitlines() == ["acme.frozen freeze Frozen", f"run {counters}", "['acme.port']"]


def test_a_fault_is_listed_and_shown(site):
    """`c4bench fault` knows the fault of the package."""
    assert "acme.freeze" in c4bench(site, "fault", "list")[1]
    assert c4bench(site, "fault", "show", "acme.freeze")[1].startswith("name: acme.freeze\n")


def test_a_job_file_names_the_workload_and_an_inventory_the_reader(site, tmp_path):
    """A JOB.yml with the package's program is read, and an inventory whose switch names its reader."""
    (tmp_path / "hosts.yml").write_text(INVENTORY)
    (tmp_path / "job.yml").write_text("{name: sums, program: acme.sums}")
    read = """
import sys; from pathlib import Path
from c4bench.control.paths.switches import Switches
from c4bench.inventory import load
from c4bench.remote import Completed
from c4bench.workload.job_file import read
known = load(Path(sys.argv[1]))
print(read(Path(sys.argv[2]), known.hosts).job.program)
class Console:
    def run(self, argv, **_):
        ip = b'[{"ifname": "Ethernet0", "addr_info": [{"local": "10.0.0.9"}]}]'
        return Completed(0, ip if "ip" in argv else b"Ethernet0 7 1 9", b"")
print(Switches(known, lambda switch: Console()).ports()["10.0.0.9"].received_bytes)
"""
    code, output, errors = python(site, "-c", read, str(tmp_path / "hosts.yml"), str(tmp_path / "job.yml"))
    assert (code, output, errors) == (0, "acme.sums\n7\n", "")


@pytest.fixture
def recording(tmp_path):
    """A recording of a job one of whose ranks is stopped."""
    job, fault = SimJob(4, (StepOp("all_reduce", 1 << 20, 0.05),), seed=4), SimFault(SimFaultKind.STOPPED, 2, 1.0)
    path = tmp_path / "job.jsonl"
    path.write_bytes(b"".join(to_lines(one for tick in simulate(job, [fault], 3.0) for one in tick.windows)))
    return path


@pytest.fixture
def log(tmp_path):
    """A file of the package's format."""
    path = tmp_path / "acme.log"
    path.write_text("acme 0 5\nacme 1 5\nacme 2 4\n")
    return path


def test_detect_judges_a_recording_by_another_detector(site, recording, log):
    """The package's detector names the stopped rank of a recording, and its format is read."""
    found = json.loads(c4bench(site, "detect", recording, "--detector", "acme", "--json")[1])
    assert [(one["component"]["name"], one["evidence"]) for one in found] == [("job:2", ["its process is stopped"])]
    assert "acme log" in c4bench(site, "detect", log)[1]


@pytest.mark.nightly
def test_detect_refuses_a_detector_that_cannot_judge_what_it_is_given(site, recording, log, tmp_path):
    """A name that nobody has, a log of collectives, and a folder of trials are refused."""
    code, _, errors = c4bench(site, "detect", recording, "--detector", "acne")
    assert (code, errors) == (2, "c4bench: no detector 'acne': one of c4d, acme\n")
    assert c4bench(site, "detect", log, "--detector", "acme")[0] == 2
    assert c4bench(site, "campaign", tmp_path, "--detector", "acme")[0] == 2


def test_a_sign_of_others_names_what_ours_do_not_see(site, tmp_path, capsys):
    """A NIC that is told to slow down, and yet is as fast as before, is named by the package's sign alone."""
    recording = tmp_path / "job.jsonl"
    windows = [
        msgspec.structs.replace(one, nics=(NicRecord(f"{one.host}/0", "linkup", cnp_received=received),))
        for tick in simulate(SimJob(4, (StepOp("all_to_all", 1 << 20, 0.05),), seed=4), [], 5.0)
        for one in tick.windows
        for received in [int(1000 * max(0.0, tick.time_s - 3.0)) if one.host == "h2" else 0]
    ]
    recording.write_bytes(b"".join(to_lines(windows)))
    assert main(["detect", str(recording), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    (found,) = json.loads(c4bench(site, "detect", recording, "--json")[1])
    assert (found["component"]["name"], found["component"]["side"]) == ("h2/0", "tx")
    assert found["evidence"][0].startswith("acme.throttled: ")


def test_a_master_is_told_who_judges(site, tmp_path):
    """A master takes the package's detector by its name, and refuses others, and any beside a bus, before it begins."""

    def errors(*words):
        code, _, said = c4bench(site, "master", "--state", tmp_path / "state", "--trust", tmp_path, *words)
        assert code == 2
        return said

    assert errors("--detector", "acne") == "c4bench: no detector 'acne': one of c4d, acme\n"
    assert "with --bus c4bench detector processes judge" in errors("--detector", "acme", "--bus", "nats://h:1")
    assert errors("--detector", "acme").startswith("c4bench: no certificates in")
    assert not (tmp_path / "state").exists()


def test_the_bundle_of_hosts_has_the_package(site, tmp_path):
    """What is deployed to hosts holds the package, and lets its entry points be found."""
    build = "import sys; from pathlib import Path; from c4bench.deploy.prepare import build; "
    build += "print(build(Path(sys.argv[1]), ranks=False))"
    code, output, errors = python(site, "-c", build, str(tmp_path))
    assert (code, errors) == (0, "")
    names = subprocess.run(["tar", "-tzf", output.strip()], capture_output=True, text=True, check=True).stdout
    assert {"acme/driver.py", "acme/acme.freeze.yml", "acme-1.0.dist-info/entry_points.txt"} <= {
        name.partition("site-packages/")[2] for name in names.splitlines()
    }


@pytest.mark.parametrize(
    ("point", "module", "why"),
    [
        (("c4bench.faults", "broken.one", "absent:X"), "", "absent:X cannot be imported: ModuleNotFoundError: "),
        (("c4bench.faults", "link.down", "bad:X"), "X = 5", "c4bench has this name; choose another"),
        *at_night(
            (
                ("c4bench.faults", "broken.one", "bad:X"),
                "raise SystemExit(3)",
                "bad:X cannot be imported: SystemExit: 3",
            ),
            (("c4bench.faults", "broken.one", "bad:X"), "X = 5", "bad:X is not a FaultSpec of that name"),
        ),
    ],
)
def test_a_bad_entry_point_costs_one_line(tmp_path, point, module, why):
    """What does not import, is of the wrong type or takes a name that exists is one line; all else is listed."""
    folder = broken(tmp_path / "site", [point], bad=module)
    code, output, errors = c4bench(folder, "fault", "list")
    (line,) = errors.splitlines()
    assert f"package broken 2.0: {point[0]} {point[1]!r} is left out: {why}" in line
    assert code == 0
    assert "link.down" in output
    assert "broken.one" not in output


@pytest.mark.parametrize("group", extensions.GROUPS)
def test_the_wrong_type_is_refused_in_each_group(tmp_path, group, monkeypatch, caplog):
    """A number is none of the nine."""
    from c4bench.c4d.detectors import DETECTORS  # noqa: PLC0415
    from c4bench.c4d.signs.added import SIGNS  # noqa: PLC0415
    from c4bench.control.paths.switches import READERS  # noqa: PLC0415
    from c4bench.evidence.formats import FORMATS  # noqa: PLC0415
    from c4bench.inject.catalogue import load  # noqa: PLC0415
    from c4bench.inject.registry import DRIVERS, WITNESSES  # noqa: PLC0415
    from c4bench.verbs.path_controls import PATH_CONTROLS  # noqa: PLC0415
    from c4bench.workload.programs import PROGRAMS  # noqa: PLC0415

    registries = (load().specs, DRIVERS, WITNESSES, PROGRAMS, PATH_CONTROLS, FORMATS, READERS, DETECTORS, SIGNS)
    known = {registry._group: registry for registry in registries}[group]
    monkeypatch.syspath_prepend(broken(tmp_path / "site", [(group, "number", "numbers_only:X")], numbers_only="X = 5"))
    fresh = extensions.Registry(group, known._what, lambda: known.own, known._fits)
    assert fresh.get("number") is None
    assert list(fresh) == list(known.own)
    assert [f"numbers_only:X is not {known._what}" in line for line in caplog.messages] == [True]


def test_two_strangers_with_one_name(site, tmp_path):
    """The first package by its name keeps it; the other costs a line that names both."""
    folder = broken(tmp_path / "site", [("c4bench.faults", "acme.freeze", "bad:X")], bad="X = 5")
    code, _, errors = c4bench(f"{site}{os.pathsep}{folder}", "fault", "show", "acme.freeze")
    assert code == 0
    assert errors.endswith("'acme.freeze' is left out: acme 1.0 has this name; choose another\n")


def test_names_of_ours_need_no_code_of_others(tmp_path):
    """A package that breaks at import says nothing as long as only our own names are used."""
    folder = broken(tmp_path / "site", [("c4bench.faults", "broken.one", "bad:X")], bad="print('imported')")
    assert c4bench(folder, "fault", "show", "link.down")[1:] == (c4bench("", "fault", "show", "link.down")[1], "")


def test_an_injector_without_the_package_says_so():
    """A host that lacks the package refuses the fault in one line, which says what to do."""
    request = json.dumps({"fault": "acme.freeze", "host": "h0", "job": "train", "rank": 0})
    code, output, _ = python("", "-m", "c4bench.inject", "plan", request)
    assert code == 3
    assert json.loads(output)["error"] == (
        f"{sys.prefix} has no fault 'acme.freeze'; install its package where you deploy from, and deploy again"
    )


def test_an_isolated_injector_hears_nothing_of_its_callers_folders(site):
    """As the deployed command starts it: variables and the folder of the caller add no package."""
    words = ["-I", "-c", "from c4bench.inject.catalogue import load; print('acme.freeze' in load().specs)"]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"


def test_the_guide_shows_the_package_that_is_tested():
    """Each code block of docs/howto/extend.md that names a file is that file."""
    guide = (ROOT / "docs/howto/extend.md").read_text()
    shown = dict(re.findall(r"`(acme/[\w.]+|pyproject\.toml)`:?\n\n```\w+\n(.*?)```", guide, re.DOTALL))
    files = {f"acme/{path.name}" for path in (PACKAGE / "acme").iterdir() if path.suffix in {".py", ".yml"}}
    assert files - {"acme/__init__.py"} | {"pyproject.toml"} == set(shown)
    assert {name: (PACKAGE / name).read_text() for name in shown} == shown
    assert yaml.safe_load(shown["acme/acme.freeze.yml"])["name"] == "acme.freeze"


def test_nothing_of_ours_comes_by_an_entry_point():
    """The groups are for others: c4bench itself has no entry in them."""
    ours = [one for one in distributions() if one.name == "c4bench"]
    assert [point for one in ours for point in one.entry_points if point.group in extensions.GROUPS] == []
