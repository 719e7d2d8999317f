"""`c4bench hook`: what a scheduler is asked to do about a finding."""

import io
import json
import signal
import subprocess
from types import SimpleNamespace

import msgspec
import pytest

from c4bench.cli.main import main
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.hook import HookInput

NIC = Component("nic", "gpu03/1")


@pytest.fixture
def hook(monkeypatch, capsys):
    """Run the command on a finding; its exit code, lines and errors."""

    def run(*words, component=NIC, alternatives=(), confidence=0.98, job="slurm-417-2", text=None):
        seen = 1.0, 2.0, 3.0, confidence, ("seen",), "it moves"
        found = Diagnosis(job, Syndrome.COMMUNICATION_HANG, component, *seen, alternatives=alternatives)
        given = msgspec.json.encode(HookInput.of(found, job, ("gpu02", "gpu03")))
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(given if text is None else text)))
        code = main(["hook", *words])
        output, errors = capsys.readouterr()
        return code, output.splitlines(), errors

    return run


def test_slurm_drains_the_host_and_requeues_the_job(hook):
    """Without --do the commands are printed: the host is drained first, so that the job starts without it."""
    assert hook("slurm") == (
        0,
        [
            "would run: scontrol update nodename=gpu03 state=drain 'reason=c4bench: communication_hang, nic gpu03/1'",
            "would run: scontrol requeue 417",
            "would run: squeue --noheader --jobs=417 --states=PENDING --format=%i",
            "would run: scontrol update jobid=417 starttime=now",
        ],
        "",
    )


def test_a_job_that_is_not_slurms_is_not_requeued(hook):
    """Its host is drained all the same."""
    assert [line.split()[3] for line in hook("slurm", job="torchrun-7")[1]] == ["update"]


def test_kubernetes_cordons_the_node_and_deletes_the_jobs_pods_there(hook):
    """The Job's controller starts them elsewhere."""
    code, lines, _ = hook("kubernetes", job="train")
    assert (code, lines) == (
        0,
        [
            "would run: kubectl cordon gpu03",
            "would run: kubectl delete pod --selector=batch.kubernetes.io/job-name=train "
            "--field-selector=spec.nodeName=gpu03 --wait=false",
        ],
    )


RANK = Component("rank", "train:1")


@pytest.fixture
def elastic(monkeypatch, tmp_path):
    """Start a process as torchrun would; `ssh` is this machine's shell, and notes the host."""
    (tmp_path / "ssh").write_text(f'#!/bin/sh\necho "$3" >> {tmp_path}/hosts\nexec sh -c "$4"\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    started = []

    def start(**variables):
        started.append(subprocess.Popen(["sleep", "60"], env=variables))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("job", "variable", "run"), [("train", "C4BENCH_JOB", "train"), ("torchrun-a.7", "TORCHELASTIC_RUN_ID", "a.7")]
)
def test_torchruns_rank_is_killed_and_no_other(hook, elastic, tmp_path, job, variable, run):
    """The process with the rank's number in the job's run; without --do none is."""
    named, other = elastic(RANK="1", **{variable: run}), elastic(RANK="11", **{variable: run})
    stranger = elastic(RANK="1", **{variable: f"{run}1"})
    assert hook("torchrun", component=RANK, job=job)[0] == 0
    assert named.poll() is None
    code, (said,), _ = hook("torchrun", "--do", component=RANK, job=job)
    assert (code, said.split()[:5]) == (0, ["ran:", "ssh", "-o", "BatchMode=yes", "gpu03"])
    assert named.wait(10) == -signal.SIGKILL
    assert (other.poll(), stranger.poll()) == (None, None)
    assert (tmp_path / "hosts").read_text() == "gpu03\n"
    code, _, errors = hook("torchrun", "--do", component=RANK, job=job)
    assert code == 3
    assert errors.endswith(f"no process of rank 1 of {job} here\n")


def test_torchrun_has_nothing_to_do_about_a_nic(hook):
    """Its ranks would start where they were."""
    why = "nic gpu03/1 is no rank, and torchrun starts ranks again where they were"
    assert hook("torchrun", "--do") == (0, [f"nothing is done: {why}"], "")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"alternatives": (Component("link", "10.0.0.1"),)}, "nic gpu03/1 has alternatives (1)"),
        ({"confidence": 0.5}, "nic gpu03/1 is right with 50%, and 80% is asked for"),
        ({"component": Component("link", "10.0.0.1")}, "link 10.0.0.1 is on no host"),
        ({"component": Component("host", "gpu[01-99]")}, "'gpu[01-99]' is no name of one host"),
        ({"component": Component("host", "ALL")}, "'ALL' is no name of one host"),
    ],
)
def test_what_is_unsure_is_left_alone(hook, given, why):
    """A finding with alternatives, of little confidence, or on no single host moves nothing."""
    assert hook("slurm", "--do", **given) == (0, [f"nothing is done: {why}"], "")


def test_a_scheduler_that_is_absent_or_refuses_is_an_error(hook, monkeypatch, tmp_path):
    """The exit code is 3, and the line says which command failed and how."""
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, errors = hook("slurm", "--do")
    assert (code, errors) == (3, "c4bench: scontrol: No such file or directory; install it where the master runs\n")


def test_bad_input_is_refused(hook):
    """Anything but a finding is a usage error."""
    code, _, errors = hook("slurm", "--do", text=json.dumps({"job": 5}).encode())
    assert code == 2
    assert errors.startswith("c4bench: standard input: ")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--hook", "nowhere/hook --now"), "--hook 'nowhere/hook --now': no such program; give its path"),
        (("--hook", ""), "--hook '': no such program; give its path"),
        (("--hook", "echo 'a"), '--hook "echo \'a": No closing quotation'),
        (("--hook", "true", "--hook-per-hour", "0"), "--hook-per-hour 0: give 1 or more"),
        (("--hook-job", "train-*"), "--hook-job says which jobs hooks are for; give a --hook too"),
    ],
)
def test_a_master_refuses_a_hook_that_cannot_run(tmp_path, capsys, words, why):
    """Before anything else the option is named, and what is wrong with it."""
    assert main(["master", "--state", str(tmp_path / "state"), *words]) == 2
    assert capsys.readouterr().err == f"c4bench: {why}\n"
    assert not (tmp_path / "state").exists()
