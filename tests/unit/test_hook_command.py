"""`c4bench hook`: what a scheduler is asked to do about a finding."""

import io
import json
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
    ],
)
def test_a_master_refuses_a_hook_that_cannot_run(tmp_path, capsys, words, why):
    """Before anything else the option is named, and what is wrong with it."""
    assert main(["master", "--state", str(tmp_path / "state"), *words]) == 2
    assert capsys.readouterr().err == f"c4bench: {why}\n"
    assert not (tmp_path / "state").exists()
