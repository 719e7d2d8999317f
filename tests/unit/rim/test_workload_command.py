"""`c4bench workload run` refuses bad input in one line, before a lab boots or a master is asked."""

from pathlib import Path

import pytest

import c4bench
from c4bench.cli.main import main
from c4bench.lab import topology_file
from c4bench.workload import job_file

EXAMPLES = sorted((Path(c4bench.__file__).parent / "workload" / "examples").glob("*.yml"))
GOOD = "{name: a, parameters: {steps: 1}}"


@pytest.fixture
def run(tmp_path, capsys):
    """Write files and run their jobs; returns the exit code and what was complained of."""

    def start(texts, *options):
        paths = [tmp_path / f"{number}.yml" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        code = main(["workload", "run", *map(str, paths), *options])
        return code, capsys.readouterr().err

    return start


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["{name: a, ranks: 9}"], "0.yml: ranks is 9, but there are 2 hosts for them"),
        (["{name: a, hosts: [h7]}"], "0.yml: no host 'h7' in the inventory; there are h0, h1"),
        (["{name: a, parameters: {steps: -x}}"], "0.yml: program 'learning': Expected `int`, got `str` - at `$.steps`"),
        (["{name: a, parameters: {model: {width: 3}}}"], "width 3 is not a multiple of heads 2"),
        ([GOOD, GOOD], "0.yml: another file has a job 'a' too; give each job a name of its own"),
    ],
)
def test_a_wrong_job_boots_no_lab(run, monkeypatch, texts, words):
    """File, place and problem are named; the lab's kernel is not even looked for."""
    monkeypatch.setattr("c4bench.cli.workload.launch", lambda *_, **__: pytest.fail("a lab was started"))
    code, complaint = run(texts, "--hosts=softroce", "--topology=pair")
    assert code == 2
    assert complaint.count("\n") == 1
    assert words in complaint


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--master=127.0.0.1:9", "no certificate of 'operator'"),
        ("--own-master", "no certificates in "),
        ("--own-master=here", "--own-master here: write ADDRESS:PORT"),
    ],
)
def test_without_certificates_or_address_no_master_is_asked(run, tmp_path, option, words):
    """On real hosts the command says what is missing for its connection."""
    hosts = tmp_path / "hosts.yml"
    hosts.write_text("all: {hosts: {h0: {ansible_host: 127.0.0.1}}}")
    code, complaint = run([GOOD], f"--hosts={hosts}", f"--trust={tmp_path / 'none'}", option)
    assert code == 2
    assert words in complaint


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_jobs(path):
    """Each example of the package is accepted on the smallest topology."""
    assert job_file.read(path, topology_file.load("pair").hosts).job.members
