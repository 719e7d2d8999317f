"""Commands of a site that get each finding: what they are given, and what bounds them."""

import asyncio
import json
import sys

import pytest

from c4bench.control.hooks import HookPolicy, Hooks, running
from c4bench.control.state.event_log import EventLog
from c4bench.control.state.store import Store
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.event import Diagnosed, HookRan


def found(component, *alternatives):
    """A finding about this component of the attempt `train`."""
    seen = 1.0, 2.0, 3.0, 0.9, ("seen",), "it moves"
    return Diagnosis("train", Syndrome.COMMUNICATION_HANG, component, *seen, alternatives=alternatives)


def served(*findings, **policy):
    """What is noted after these findings of a job on h0 and h1, by a hook of this policy."""

    async def serve():
        log, ran = EventLog(Store(None)), []
        async with running(
            Hooks(HookPolicy(**policy), log, lambda attempt: ("h0", "h1") if attempt == "train" else ())
        ):
            await asyncio.sleep(0)
            for finding in findings:
                log.publish(Diagnosed(3.0, finding))
            while len(ran) < len(findings) * len(policy["commands"]):
                await asyncio.sleep(0.01)
                ran = [event for event in log.events if isinstance(event, HookRan)]
        return ran

    return asyncio.run(asyncio.wait_for(serve(), 20))


def python(text):
    """A command that runs this text."""
    return (sys.executable, "-c", text)


@pytest.mark.parametrize(
    ("component", "host"),
    [
        (Component("rank", "train:1"), "h1"),
        (Component("nic", "h0/1", "tx"), "h0"),
        (Component("host", "h1"), "h1"),
        (Component("link", "10.0.0.1"), ""),
        (Component("rank", "train:9"), ""),
    ],
)
def test_a_command_is_given_the_finding_and_where_it_is(tmp_path, component, host):
    """On its standard input is one JSON object: the finding, the hosts of the job, and that of the component."""
    file = tmp_path / "given.json"
    (ran,) = served(found(component), commands=(("/bin/sh", "-c", f"cat > {file}; echo noted; echo more"),))
    given = json.loads(file.read_text())
    assert (given["job"], given["host"], given["hosts"], given["sure"]) == ("train", host, ["h0", "h1"], True)
    assert given["diagnosis"]["component"]["name"] == component.name
    assert (ran.component, ran.exit_code, ran.said) == (component, 0, "noted")


def test_alternatives_make_a_finding_unsure(tmp_path):
    """A command that acts on what is sure only can see it."""
    file = tmp_path / "given.json"
    served(found(Component("host", "h0"), Component("host", "h1")), commands=(("/usr/bin/tee", str(file)),))
    assert json.loads(file.read_text())["sure"] is False


def test_a_command_runs_no_more_often_than_its_limit():
    """The third finding within the hour is noted with the limit, and the command is not run."""
    one = found(Component("host", "h0"))
    ran = served(one, one, one, commands=(("/bin/true",),), per_hour=2)
    assert [event.exit_code for event in ran] == [0, 0, None]
    assert ran[2].said == "not run: it ran 2 times within the last hour, which is the limit"


@pytest.mark.parametrize(("patterns", "runs"), [(("other", "tr*"), 1), (("other", "tr"), 0)])
def test_a_command_is_for_some_jobs(patterns, runs):
    """A site says by patterns what is found about which jobs its commands get."""

    async def serve():
        log = EventLog(Store(None))
        async with running(Hooks(HookPolicy((("/bin/true",),), patterns), log, lambda _: ())):
            await asyncio.sleep(0)
            for component in ("h0", "h1"):
                log.publish(Diagnosed(3.0, found(Component("host", component))))
            await asyncio.sleep(0.3)
        return [event for event in log.events if isinstance(event, HookRan)]

    assert len(asyncio.run(serve())) == 2 * runs


def test_a_dry_run_runs_nothing(tmp_path):
    """What would have run is noted."""
    file = tmp_path / "given.json"
    (ran,) = served(found(Component("host", "h0")), commands=(("/usr/bin/tee", str(file)),), dry_run=True)
    assert (ran.command, ran.exit_code, ran.said) == (f"/usr/bin/tee {file}", None, "not run: a dry run")
    assert not file.exists()


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("/nowhere/hook",), None, "not run: No such file or directory; correct the command"),
        (python("raise SystemExit('no such node')"), 1, "no such node"),
        (python("import time; time.sleep(60)"), None, "killed after 0.5 s"),
        (python("print('x' * (1 << 22))"), 0, None),
        (python("print('\\x1b[31mred')"), 0, "\\x1b[31mred"),
    ],
)
def test_a_command_that_misbehaves_harms_nobody(command, code, said):
    """One that is missing, fails, hangs, floods or prints controls is noted in a line; the next finding is served."""
    ran = served(*[found(Component("host", "h0"))] * 2, commands=(command,), timeout_s=0.5 if code is None else 20.0)
    assert [event.exit_code for event in ran] == [code, code]
    assert said is None or ran[0].said == said
    assert len(ran[0].said) < 10_000
