"""`c4bench nightly`, as a timer starts it: run, compare, write one page, keep the last nights."""

import json

import pytest
from night_cases import at_night

from c4bench.cli.main import main

SCENARIO = """\
from pathlib import Path
def test_speed(measure):
    measure("speed_s", float(Path("speed").read_text()), unit="s", at_most=5.0)
"""
OTHER = 'import pytest\ndef test_other(measure): measure("other_s", 1.0, unit="s", at_most=5.0)\n'
SKIPPED = OTHER.replace(' measure("', ' pytest.skip("no-gpu: none"); measure("')


@pytest.fixture
def place(tmp_path):
    (tmp_path / "hosts.yml").write_text("all: {hosts: {here: {ansible_connection: local}}}")
    (tmp_path / "test_it.py").write_text(SCENARIO)
    (tmp_path / "pytest.ini").write_text("[pytest]\nc4_fixtures = true\n")
    (tmp_path / "speed").write_text("1.0")
    return tmp_path


@pytest.fixture
def nightly(capfd, monkeypatch):
    """`nightly(place, *words)`: the command in that folder, which itself runs pytest there: exit code and output."""

    def run(place, *words, given=()):
        monkeypatch.chdir(place)
        capfd.readouterr()
        argv = ["nightly", f"--hosts={place / 'hosts.yml'}", "--runs=runs", *words]
        arguments = ["--", "-q", "-p", "no:cacheprovider", "test_it.py", *given]
        return main([*argv, *arguments]), capfd.readouterr().out

    return run


def runs(place):
    return sorted(path.name for path in (place / "runs").iterdir() if path.name.endswith("night") and path.is_dir())


def earlier(place, count):
    """Earlier nights, copied from a real one."""
    first = place / "runs" / runs(place)[0]
    for number in range(count):
        path = place / "runs" / f"20200101T{number:06}Z-night"
        path.mkdir()
        for name in ("run.json", "timings.jsonl", "events.jsonl"):
            (path / name).write_bytes((first / name).read_bytes())


def test_a_night_is_run_compared_told_and_kept(place, nightly):
    """A night that is slower than the accepted one exits 1 although within its limit, and old nights are removed."""
    code, said = nightly(place, "--accept")
    assert code == 0, said
    assert "pass, 0 worse" in said
    assert "1 scenarios, 0 did not pass, 0 were skipped" in said
    assert "0 figures compared with 0 nights of the 3 that are needed." in said
    accepted = runs(place)[0]
    earlier(place, 4)
    (place / "speed").write_text("2.0")
    code, said = nightly(place, "--keep=3")
    assert code == 1, said
    assert "that are needed" not in said
    kept = runs(place)
    assert f"it.speed: speed_s = 2 s, expected 990 ms to 1.01 s after 3 nights, since {kept[-1]}" in said
    assert len(kept) == 3
    assert accepted in kept
    page = (place / "runs/latest/night.md").read_text()
    assert "speed\\_s" in page
    assert page.replace("\\", "") in said
    assert json.loads((place / "runs/latest/artefacts/night.json").read_text())["changes"][0]["kind"] == "worse"


def test_what_is_wrong_on_the_command_line_leaves_no_night(place, nightly):
    """A missing inventory is a usage error, and no night is kept for it."""
    (place / "hosts.yml").unlink()
    code, _ = nightly(place)
    assert code == 2
    assert runs(place) == []
    assert nightly(place, "--keep=0")[0] == 2


@pytest.mark.parametrize(("words", "code"), [((), 3), *at_night((("--c4-allow-partial",), 0))])
def test_a_night_without_a_host_says_which_and_why(place, nightly, words, code):
    """The page begins with the hosts that could not be used, whether the others were used or not."""
    (place / "hosts.yml").write_text(
        "all: {hosts: {here: {ansible_connection: local}, gone: {ansible_host: 127.0.0.1, ansible_port: 1}}}"
    )
    (place / "test_it.py").write_text("def test_it(hosts): pass\n")
    ended, said = nightly(place, given=words)
    assert ended == code, said
    page = said[said.index("# 2") :]
    assert "## Without these hosts\n\n- gone: " in page
    assert "Connection refused" in page


def test_a_night_that_runs_less_is_inconclusive(place, nightly):
    """A scenario that ran last night and is skipped tonight is named with its reason, and the exit code is 4."""
    (place / "test_it.py").write_text(SCENARIO + OTHER)
    assert nightly(place)[0] == 0
    (place / "test_it.py").write_text(SCENARIO + SKIPPED)
    code, said = nightly(place)
    assert code == 4, said
    assert "inconclusive, 0 worse" in said
    assert "## Skipped\n\n- 1 scenarios: no-gpu: none" in said
    assert "## Ran last night, not tonight\n\n- it.other" in said


@pytest.mark.nightly
def test_a_night_that_only_skips_is_inconclusive(place, nightly):
    """Nothing has failed and nothing was seen: the exit code is 4, and the records say what was skipped and why."""
    (place / "test_it.py").write_text(SKIPPED)
    code, said = nightly(place)
    assert code == 4, said
    run = json.loads((place / "runs/latest/run.json").read_text())
    assert (run["scenarios"], run["skips"]) == ({"skip": 1}, {"no-gpu: none": 1})
