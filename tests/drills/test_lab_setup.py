"""docs/lab-setup.md as its reader follows it: from bare hosts with RDMA to a first night, each command as it stands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.nightly
REPOSITORY = Path(__file__).parents[2]
FABRIC = Path(__file__).with_name("four.yml")
LEFT_OUT = "--c4-scheduler=slurm"  # there is none
AT_THE_END = ("playbooks/collect.yml", "playbooks/teardown.yml")
# A first run that touches nothing, an interrupted one, and what it has left over.
READING, SOME, ALL = "baseline and every", "baseline", "baseline or vanishes"
SCENE = """
set -u
unset C4BENCH_IN_LAB
export ANSIBLE_HOME=/tmp/ansible ANSIBLE_LOCAL_TEMP=/tmp/ansible/tmp ANSIBLE_NOCOLOR=1
python -c '
import sys, yaml
found = yaml.safe_load(open("/run/c4/inventory.yml"))
facts = {name: host.pop("c4") for name, host in found["all"]["hosts"].items()}
del found["all"]["children"]
yaml.safe_dump(found, open("hosts.yml", "w"))
yaml.safe_dump(facts, open(sys.argv[1], "w"))
' "$run/facts.yml"
say() { number=$1; shift; bash -o pipefail -c "$*" > "$run/$number.log" 2>&1; echo $? > "$run/$number.rc"; }
# As a person would: what was found is looked at, and completed by what hosts cannot tell.
review() {
  cp -r host_vars "$run/host_vars"
  python -c '
import pathlib, sys, yaml
for name, facts in yaml.safe_load(open(sys.argv[1])).items():
    path = pathlib.Path("host_vars") / name / "c4bench.yml"
    facts.pop("python")
    path.write_text(yaml.safe_dump({"c4": facts | {"management": "eth0"}}))
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


def lines_of(run):
    """The scene: each command with its placeholders filled in, and which scenarios it is about here."""
    for number, command in enumerate(commands()):
        name, line = f"{number:02}", command.replace("FOLDER", f"{run}/collected")
        if "deploy.yml" in line:
            line = line.partition(" -e ")[0] + " $(deployed)"
        chosen = ALL if "--c4-resume" in line else SOME if "--c4-allow-disruptive" in line else READING
        yield f"export PYTEST_ADDOPTS={shlex.quote(f'-p no:cacheprovider -k {shlex.quote(chosen)}')}"
        yield f"say {name} {shlex.quote(line) if '$(' not in line else line}"
        if "discover.yml" in line:
            yield "review"
    yield f"cp -r nights reports/runs {run}/ 2> /dev/null"


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """By command, what came of it."""
    run = tmp_path_factory.mktemp("guide")
    (run / "scene.sh").write_text("\n".join([f"run={run}", SCENE, *lines_of(run)]))
    lab = [sys.executable, "-m", "c4bench.cli.main", "lab", "run", "--bare", f"--topology={FABRIC}", f"--run-dir={run}"]
    done = subprocess.run(
        [*lab, "--", "bash", str(run / "scene.sh")], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return {command: Output(run, f"{number:02}") for number, command in enumerate(commands())}, run


def test_every_command_of_the_guide_does_what_it_says(output):
    """On four hosts with RDMA, over SSH, from nothing deployed to a night's page, and nothing of ours afterwards."""
    by_command, _ = output
    for command, found in by_command.items():
        assert found.code == 0, f"{command}: {found.said[-2000:]}"


def test_each_run_is_what_the_guide_calls_it(output):
    """The first degrades nothing; the next announces its faults; a resumed one runs the rest; a night has its page."""
    by_command, run = output
    runs = [found.said for command, found in by_command.items() if "tests/scenarios" in command]
    reading, required, breaking, resumed, night = runs
    assert "nothing is degraded" in reading
    assert "baseline.worst_bandwidth_fraction" in reading
    assert "1 passed" in required
    assert "1 of 2 scenarios degrade h0, h1, h2, h3" in breaking
    assert "faults: nic.rate; each ends by itself" in breaking
    assert "2 passed" in breaking
    assert "1 of 1 scenarios degrade h0, h1, h2, h3" in resumed
    assert "1 passed, " in resumed
    assert "pass, 0 worse" in night
    assert list((run / "nights").glob("*-night/night.md"))


def test_what_was_discovered_is_what_the_hosts_have(output):
    """The lab's devices and interfaces, each on its own host; what hosts cannot know is left to the reader."""
    _, run = output
    facts = yaml.safe_load((run / "facts.yml").read_text())
    for name, known in facts.items():
        found = yaml.safe_load((run / "host_vars" / name / "c4bench.yml").read_text())["c4"]
        assert not found["disruptive"]
        assert found["management"] == "eth0"
        reported, real = found["nics"][0], known["nics"][0]
        assert (reported["device"], reported["netdev"]) == (real["device"], real["netdev"])
