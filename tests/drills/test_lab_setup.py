"""docs/lab-setup.md as its reader follows it: from bare hosts with RDMA to nights, each command as it stands.

Once with SoftRoCE for a night, once for three nights on a rack's twin: NICs like ConnectX, switches that speak SONiC.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

pytestmark = pytest.mark.nightly
REPOSITORY = Path(__file__).parents[2]
HERE = Path(__file__).parent
LEFT_OUT = "--c4-scheduler=slurm"  # there is none
AT_THE_END = ("playbooks/collect.yml", "playbooks/teardown.yml")
# A first run touches nothing.
READING = "baseline and every"


class Guide(NamedTuple):
    """Which lab the guide is followed in, for so many nights: scenarios of an interrupted run, and all.

    `said` is what the interrupted run, the resumed one and each night say.
    """

    fabric: str
    nights: int
    some: str
    every: str
    said: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


class Discovered(yaml.SafeLoader):
    """Reads what `discover.yml` writes: texts of hosts are no templates."""


Discovered.add_constructor("!unsafe", yaml.SafeLoader.construct_scalar)
PLAIN = Guide(
    "four.yml",
    1,
    "baseline",
    "baseline or vanishes",
    (
        ("1 of 2 scenarios degrade h0, h1, h2, h3", "faults: nic.rate; each ends by itself", "2 passed"),
        ("1 of 1 scenarios degrade h0, h1, h2, h3", "1 passed, "),
        ("pass, 0 worse",),
    ),
)
RACK = Guide(
    "rack.yml",
    3,
    "test_link_fault and link.down",
    "(test_link_fault and link.down) or (test_nic_fault and nic.down) or (baseline and every)",
    (
        ("1 of 1 scenarios degrade", "faults: link.down; each ends by itself", "1 passed"),
        ("1 of 2 scenarios degrade", "faults: nic.down; each ends by itself", "2 passed, "),
        ("pass, 0 worse",),
    ),
)
SCENE = """
set -u
unset C4BENCH_IN_LAB
export ANSIBLE_HOME=/tmp/ansible ANSIBLE_LOCAL_TEMP=/tmp/ansible/tmp ANSIBLE_NOCOLOR=1
python -c '
import sys, yaml
found = yaml.safe_load(open("/run/c4/inventory.yml"))
facts = {name: host.pop("c4") for name, host in found["all"]["hosts"].items()}
switches = found["all"]["children"]["switches"]["hosts"]
if not any("os" in switch["c4"] for switch in switches.values()):
    del found["all"]["children"]  # they are no machines
yaml.safe_dump(found, open("hosts.yml", "w"))
yaml.safe_dump(facts, open(sys.argv[1], "w"))
' "$run/facts.yml"
say() { number=$1; shift; bash -o pipefail -c "$*" > "$run/$number.log" 2>&1; echo $? > "$run/$number.rc"; }
# As a person would: what was found is looked at, and completed by what hosts cannot tell.
review() {
  cp -r host_vars "$run/host_vars"
  python -c '
import pathlib, sys, yaml
yaml.SafeLoader.add_constructor("!unsafe", yaml.SafeLoader.construct_scalar)  # what a host says is no template
for name, facts in yaml.safe_load(open(sys.argv[1])).items():
    path = pathlib.Path("host_vars") / name / "c4bench.yml"
    found = yaml.safe_load(path.read_text())["c4"]
    facts["nics"] = [old | new for old, new in zip(found["nics"], facts["nics"], strict=True)]
    facts.pop("python")
    path.write_text(yaml.safe_dump({"c4": found | facts}))
' "$run/facts.yml"
}
deployed() { grep -h ^ansible-playbook "$run"/*.log | sed "s/=ADDRESS/=10.255.0.1/; s/.*deploy.yml//"; }
"""


class Output:
    """What a command of the guide said in the lab, and how it ended."""

    def __init__(self, folder, name):
        self.code = int((folder / f"{name}.rc").read_text())
        self.said = (folder / f"{name}.log").read_text()


def commands():
    """Every command of the guide that runs something of ours, by section, in order."""
    guide = (REPOSITORY / "docs/lab-setup.md").read_text()
    found = re.findall(r"^    (\.venv/bin/.*?)(?:  +#.*)?$", guide.replace("\\\n      ", ""), re.MULTILINE)
    kept = [line for line in found if LEFT_OUT not in line]
    return sorted(kept, key=lambda line: any(word in line for word in AT_THE_END))


def steps(guide):
    """Every command, the last one before the end as often as there are nights."""
    ending = [line for line in commands() if any(word in line for word in AT_THE_END)]
    *before, night = (line for line in commands() if line not in ending)
    return [*before, *[night] * guide.nights, *ending]


def lines_of(guide, run):
    """The scene: each command with its placeholders filled in, and which scenarios it is about here."""
    for number, command in enumerate(steps(guide)):
        name, line = f"{number:02}", command.replace("FOLDER", f"{run}/collected")
        if "deploy.yml" in line:
            line = line.partition(" -e ")[0] + " $(deployed)"
        disruptive = guide.some if "--c4-run-dir" not in line and "nightly" not in line else guide.every
        chosen = disruptive if "--c4-allow-disruptive" in line else READING
        yield f"export PYTEST_ADDOPTS={shlex.quote(f'-p no:cacheprovider -k {shlex.quote(chosen)}')}"
        yield f"say {name} {shlex.quote(line) if '$(' not in line else line}"
        if "discover.yml" in line:
            yield "review"
    yield f"cp -r nights reports/runs {run}/ 2> /dev/null"


@pytest.fixture(scope="module", params=[PLAIN, RACK], ids=lambda guide: guide.fabric.partition(".")[0])
def followed(request, tmp_path_factory):
    """The guide, each of its commands with what came of it, and the run's directory."""
    guide, run = request.param, tmp_path_factory.mktemp("guide")
    (run / "scene.sh").write_text("\n".join([f"run={run}", SCENE, *lines_of(guide, run)]))
    fabric = HERE / guide.fabric
    lab = [sys.executable, "-m", "c4bench.cli.main", "lab", "run", "--bare", f"--topology={fabric}", f"--run-dir={run}"]
    done = subprocess.run(
        [*lab, "--", "bash", str(run / "scene.sh")], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    outputs = [(command, Output(run, f"{number:02}")) for number, command in enumerate(steps(guide))]
    return guide, outputs, run


def said_by(outputs, word):
    """What the commands with this word in them have said, in order."""
    return [found.said for command, found in outputs if word in command]


def test_every_command_of_the_guide_does_what_it_says(followed):
    """On four hosts with RDMA, over SSH, from nothing deployed to a night's page, and nothing of ours afterwards."""
    _, outputs, _ = followed
    for command, found in outputs:
        assert found.code == 0, f"{command}: {found.said[-2000:]}"


def test_each_run_is_what_the_guide_calls_it(followed):
    """The first degrades nothing; the next announces its faults; a resumed one runs the rest; a night has its page."""
    guide, outputs, run = followed
    reading, required, breaking, resumed, *nights = said_by(outputs, "tests/scenarios")
    assert "nothing is degraded" in reading
    assert "baseline.worst_bandwidth_fraction" in reading
    assert "1 passed" in required
    for said, expected in zip((breaking, resumed), guide.said[:2], strict=True):
        assert [words for words in expected if words not in said] == []
    for number, said in enumerate(nights):
        assert f"compared with {number} nights" in said
        assert [words for words in guide.said[2] if words not in said] == []
    assert len([*(run / "nights").glob("*-night/night.md")]) == guide.nights


def test_doctor_finds_switches_and_cables_right(followed):
    """SONiC switches and NICs like ConnectX are set as RDMA needs them, and cabled as LLDP says; others say nothing."""
    guide, outputs, _ = followed
    said = said_by(outputs, "c4bench doctor --hosts hosts.yml")[0]
    assert "BAD" not in said
    rack = guide is RACK
    assert ("ok   switch leaf0, leaf1, spine0, spine1: answers" in said) == rack
    assert ("ok   cables: what 8 hosts and switches see by LLDP is as stated" in said) == rack


def test_what_was_discovered_is_what_the_hosts_have(followed):
    """The lab's devices and interfaces, each on its own host; what hosts cannot know is left to the reader."""
    _, _, run = followed
    facts = yaml.safe_load((run / "facts.yml").read_text())
    for name, known in facts.items():
        found = yaml.load((run / "host_vars" / name / "c4bench.yml").read_text(), Discovered)["c4"]
        assert not found["disruptive"]
        assert found["management"] == "eth0"
        reported, real = found["nics"][0], known["nics"][0]
        assert (reported["device"], reported["netdev"]) == (real["device"], real["netdev"])
