"""The shell on a switch: what its scripts change, refuse and undo, and when; run by this machine's own sh.

A wrapper stands for `ssh`, and the switch's folder and its `at` are the test's own.
"""

import os
import shlex
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from c4bench.errors import UnhealthyError
from c4bench.inject import switch_shell
from c4bench.inject.switch_shell import SwitchFault, UnreachableError
from c4bench.model.fault import AgentlessSwitch
from c4bench.switches.system import Cycle, Read

# What runs on the switch is the last word of ssh's.
SSH = """#!/bin/sh
for last in "$@"; do :; done
cat {banner} 2>/dev/null
PATH={tools}:$PATH SSH_CONNECTION="10.0.0.9 50000 10.0.0.1 22" exec sh -c "$last"
"""
AT = '#!/bin/sh\njob=$(cat)\nsetsid sh -c "$job" >/dev/null 2>&1 </dev/null 9>&- &\n'


class Switch:
    """A folder that stands for a switch: `log` has what its lines did, in order."""

    def __init__(self, root):
        self.root, self.log, self.run = root, root / "log", root / "run"
        self.tools = root / "tools"
        self.tools.mkdir()
        self.tool("ssh", SSH.format(tools=self.tools, banner=root / "banner"))
        self.tool("id", "#!/bin/sh\necho 0\n")
        self.tool("at", AT)
        self.reached = AgentlessSwitch("linux", (str(self.tools / "ssh"), "leaf0"))

    def tool(self, name, text):
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def line(self, word):
        return f"echo {word} >> {shlex.quote(str(self.log))}"

    def did(self):
        return self.log.read_text().split() if self.log.exists() else []

    def files(self, kind):
        return [path.stem for path in self.run.glob(f"*.{kind}")]

    def uptime_ms(self):
        return int(float(Path("/proc/uptime").read_text().split()[0]) * 1000)

    def fault(self, *, apply=("on",), revert=("off",), claims=("link of up0",), cycle=None, token="aa"):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        lines = [tuple(map(self.line, words)) for words in (apply, revert)]
        return SwitchFault("leaf0", self.reached, token, claims, *lines, boot, cycle)

    def apply(self, fault, lease_s=30.0):
        return switch_shell.apply(fault, self.uptime_ms() + int(1000 * lease_s))


@pytest.fixture
def switch(tmp_path, monkeypatch):
    made = Switch(tmp_path)
    text = switch_shell._FUNCTIONS.replace("/run/c4bench-switch", str(made.run))
    monkeypatch.setattr(switch_shell, "_FUNCTIONS", text.replace("/run/systemd", str(tmp_path / "systemd")))
    yield made
    for path in made.run.glob("*.undo"):  # so that nothing waits any longer
        path.unlink()


def until(holds, timeout_s=5.0):
    end_s = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < end_s:
        time.sleep(0.02)
    return holds()


def test_a_change_is_made_and_undone_in_order(switch):
    """Between the two, what undoes it is on the switch; afterwards nothing is but the mark that it is over."""
    fault = switch.fault(apply=("one", "two"), revert=("back", "home"))
    switch.apply(fault)
    assert switch.did() == ["one", "two"]
    assert switch.files("undo") == ["aa"]
    assert switch_shell.revert(fault) == ""
    assert switch.did() == ["one", "two", "back", "home"]
    assert [switch.files(kind) for kind in ("undo", "waiting", "over")] == [[], [], ["aa"]]
    assert switch_shell.revert(fault) == ""
    assert len(switch.did()) == 4


def test_the_switch_ends_a_lease_by_itself(switch):
    """Nobody asks for the end: it comes a little after the lease, and a controller that comes later finds it done."""
    fault = switch.fault()
    began_s = time.monotonic()
    switch.apply(fault, lease_s=1.0)
    assert until(lambda: switch.did() == ["on", "off"])
    assert 1.0 <= time.monotonic() - began_s < 3.0
    assert switch_shell.revert(fault) == ""
    assert switch.did() == ["on", "off"]


def test_a_switch_with_a_timer_of_its_own_keeps_no_file(switch):
    """Its own timer undoes the change; ours only goes, and then nothing is claimed any more."""
    switch.tool("at", "#!/bin/sh\nexit 1\n")
    fault = msgspec.structs.replace(switch.fault(), ends_s=1)
    switch.apply(fault)
    assert switch.files("undo") == ["aa"]
    with pytest.raises(UnhealthyError, match="is changed by another fault there"):
        switch.apply(msgspec.structs.replace(fault, token="bb"))
    assert until(lambda: not switch.files("undo"))
    assert [switch.files(kind) for kind in ("waiting", "over")] == [[], ["aa"]]
    assert switch_shell.revert(fault) == ""
    assert switch.did() == ["on"]
    switch.apply(msgspec.structs.replace(fault, token="bb"))
    switch_shell.revert(msgspec.structs.replace(fault, token="bb"))
    assert switch.did() == ["on", "on", "off"]


def test_a_refused_line_takes_all_back(switch):
    """The reason is the last line of what the command printed; what was done before it is undone."""
    fault = switch.fault()
    fault = msgspec.structs.replace(fault, apply=(*fault.apply, "echo no; echo 'no such port' >&2; false"))
    with pytest.raises(UnhealthyError, match=r"was refused, and all is as before: no such port"):
        switch.apply(fault)
    assert switch.did() == ["on", "off"]
    assert not switch.files("undo")


def test_the_moment_of_a_change_is_known_without_what_came_before_it(switch):
    """Neither the connection nor what is prepared on the switch makes it uncertain when the change was made."""
    slow_s = 0.4
    switch.tool(
        "ssh", SSH.format(tools=switch.tools, banner=switch.root / "banner").replace("cat", f"sleep {slow_s}; cat")
    )
    switch.tool("at", AT.replace("job=", f"sleep {slow_s}; job="))
    fault = msgspec.structs.replace(switch.fault(), apply=(f"date +%s.%N >> {shlex.quote(str(switch.log))}",))
    before_s = time.time()
    span = switch.apply(fault)
    took_s = time.time() - before_s
    assert span.began_s <= float(switch.did()[0]) <= span.ended_s
    assert span.ended_s - span.began_s <= took_s - 2 * slow_s + 0.02  # two steps of /proc/uptime
    assert switch_shell.revert(fault) == ""


def test_a_program_that_only_reads_is_not_waited_for(switch, monkeypatch):
    """What is no shell is given the whole script soon, so that it can end and say what it is."""
    monkeypatch.setattr(switch_shell, "_READY_WITHIN_S", 0.1)
    switch.tool("ssh", "#!/bin/sh\ncat >/dev/null\necho '% Invalid input'\n")
    with pytest.raises(UnreachableError, match=r"it ran no script .% Invalid input"):
        switch_shell.revert(switch.fault())


def test_half_a_script_does_nothing(switch, monkeypatch):
    """A connection that breaks while the script is on its way leaves the switch as it is, wherever it breaks."""
    scripts = []
    run = switch_shell._run
    monkeypatch.setattr(switch_shell, "_run", lambda *words: scripts.append(words[2]) or run(*words))
    switch_shell.revert(switch.fault(token="bb"))
    scripts.clear()
    with pytest.raises(UnhealthyError, match="has ended before"):
        switch.apply(switch.fault(token="bb"))
    scripts[0] = scripts[0].replace(b"begin bb", b"begin aa")
    (script,) = scripts
    environment = os.environ | {"PATH": f"{switch.tools}:{os.environ['PATH']}"}
    for share in range(1, 20):
        part = script[: len(script) * share // 20]
        subprocess.run(["sh", "-s"], input=part, env=environment, capture_output=True, check=False)
    subprocess.run(
        ["sh", "-s"], input=script[: script.rindex(b"main")], env=environment, capture_output=True, check=False
    )
    assert switch.did() == []
    subprocess.run(["sh", "-s"], input=script, env=environment, capture_output=True, check=False)
    assert switch.did() == ["on"]


def test_what_another_fault_claims_is_refused(switch):
    """Whoever applied that one, from whichever controller; other claims are no obstacle."""
    switch.apply(switch.fault())
    with pytest.raises(UnhealthyError, match="the link of up0 is changed by another fault there; end that first"):
        switch.apply(switch.fault(claims=("egress of up0", "link of up0"), token="bb"))
    switch.apply(switch.fault(claims=("link of up1",), token="cc"))
    assert sorted(switch.files("undo")) == ["aa", "cc"]


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (lambda switch: switch.tool("at", "#!/bin/sh\nexit 1\n"), "no timer could be armed"),
        (lambda switch: switch.tool("at", "#!/bin/sh\n"), "no timer could be armed"),  # without a daemon
        (lambda switch: switch.tool("cat", "#!/bin/sh\necho other\n"), "its disk is full; free some space"),
        (lambda switch: switch.run.write_text("a file\n"), "cannot be locked"),
        (lambda switch: switch.tool("flock", "#!/bin/sh\nexit 1\n"), "another change is under way"),
    ],
)  # fmt: skip
def test_without_a_way_back_nothing_is_changed(switch, broken, why):
    """No timer, no room, no lock: one line says so."""
    broken(switch)
    with pytest.raises(UnhealthyError, match=why):
        switch.apply(switch.fault())
    assert switch.did() == []


def test_a_lease_that_is_over_before_it_begins_changes_nothing(switch):
    """A switch that answers slowly must not begin what should have ended; nor what has been called off."""
    with pytest.raises(UnhealthyError, match="the lease was over before the fault began"):
        switch.apply(switch.fault(), lease_s=-1.0)
    switch_shell.revert(switch.fault(token="bb"))
    with pytest.raises(UnhealthyError, match="the fault has ended before it began"):
        switch.apply(switch.fault(token="bb"))
    assert "on" not in switch.did()
    assert not switch.files("undo")


def test_a_change_comes_and_goes_while_it_lasts(switch):
    """On for its share of each period, as often as asked; the end stops it."""
    fault = switch.fault(cycle=Cycle(period_s=0.4, duty=0.5, count=2))
    switch.apply(fault)
    assert until(lambda: switch.did() == ["on", "off", "on", "off"])
    assert switch_shell.revert(fault) == ""
    switch.log.unlink()
    endless = switch.fault(cycle=Cycle(period_s=0.3, duty=0.5, count=1000), token="bb")
    switch.apply(endless)
    assert until(lambda: len(switch.did()) > 2)
    switch_shell.revert(endless)
    ended = switch.did()
    time.sleep(0.5)
    assert switch.did() == ended
    assert ended[-1] == "off"


def test_systemd_is_given_the_timer_where_it_runs(switch):
    """The timer is exact to 50 ms and its unit is named after the fault; the end stops it."""
    (switch.root / "systemd/system").mkdir(parents=True)
    for tool in ("systemd-run", "systemctl"):
        switch.tool(tool, f'#!/bin/sh\necho {tool} "$@" >> {switch.root}/units\n')
    fault = switch.fault()
    switch.apply(fault, lease_s=30.0)
    switch_shell.revert(fault)
    started, stopped = (switch.root / "units").read_text().splitlines()
    assert started.startswith("systemd-run --quiet --collect --unit=c4bench-aa --on-active=")
    assert 25_000 < int(started.partition("--on-active=")[2].partition("ms")[0]) <= 30_300
    assert started.endswith(f"--timer-property=AccuracySec=50ms sh {switch.run}/aa.undo timer")
    assert stopped == "systemctl --quiet stop c4bench-aa.timer c4bench-aa-flap.service"


def test_what_a_switch_prints_is_read_past_its_banner(switch):
    """Each output is as the command printed it; those that failed are left out unless they are needed."""
    (switch.root / "banner").write_text("Willkommen! Zugriff nur fuer Befugte")
    reads = {"a": Read("printf 'x\\ny'"), "b": Read("echo '{}'; exit 3", needed=False), "c": Read("echo $LC_ALL")}
    answer = switch_shell.read("leaf0", switch.reached, reads)
    assert answer.printed == {"a": "x\ny", "c": "C.UTF-8\n"}
    assert answer.codes == {"a": 0, "b": 3, "c": 0}
    assert answer.said["session"].split()[2] == "10.0.0.1"
    assert abs(int(answer.said["uptime_ms"]) - switch.uptime_ms()) < 5000
    with pytest.raises(UnhealthyError, match=r"`show ports` failed \(.*not found\); is it linux, and does its version"):
        switch_shell.read("leaf0", switch.reached, {"a": Read("show ports")})


@pytest.mark.parametrize(
    ("tool", "text", "why"),
    [
        ("id", "#!/bin/sh\necho 1000\n", "may not use sudo without a password"),
        ("ssh", "#!/bin/sh\necho 'Connection refused' >&2; exit 255\n", "no connection: Connection refused"),
        ("ssh", "#!/bin/sh\necho '% Invalid input'\n", r"ran no script \(% Invalid input\); is it linux"),
    ],
)
def test_a_switch_that_runs_no_script_says_why(switch, tool, text, why):
    """What it said, and what to do, in one line; the fault may be in force, so its entry is kept."""
    switch.tool("sudo", "#!/bin/sh\necho 'sudo: a password is required' >&2; exit 1\n")
    switch.tool(tool, text)
    with pytest.raises(UnreachableError, match=why):
        switch_shell.revert(switch.fault())


def test_a_switch_that_does_not_answer_is_given_up(switch, monkeypatch):
    """The time that it is waited for is bounded, and so is what it may print."""
    monkeypatch.setattr(switch_shell, "_CHANGE_TIMEOUT_S", 0.3)
    switch.tool("ssh", "#!/bin/sh\nexec sleep 30\n")
    with pytest.raises(UnreachableError, match=r"did not answer within 0\.3 s"):
        switch_shell.revert(switch.fault())
    monkeypatch.setattr(switch_shell, "_CHANGE_TIMEOUT_S", 30.0)
    switch.tool("ssh", "#!/bin/sh\nexec yes\n")
    with pytest.raises(UnhealthyError, match="more than"):
        switch_shell.revert(switch.fault())


def test_a_restart_is_noticed(switch):
    """The switch has another boot id than when the fault was planned: nothing of it was there to undo."""
    fault = msgspec.structs.replace(switch.fault(), boot="0e3d")
    assert "the switch has restarted since" in switch_shell.revert(fault)
    assert switch.did() == []
