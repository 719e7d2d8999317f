"""`c4bench exhaust`: programs with one event at each packet go well or fail loudly, and planted bugs are found."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import failover_mutants
import pytest

from c4bench.exhaust import ledger
from c4bench.exhaust.harness import tally
from c4bench.exhaust.trials import read_replay
from c4bench.model.measurement import Clock, Outcome
from c4bench.record import Ledger

MUTANTS = Path(__file__).with_name("exhaust_mutants.py")
EXHAUST = (sys.executable, "-m", "c4bench.cli.main", "exhaust")
# What a replay may have at most; after a loss, messages overtake each other in longer programs only.
PACKETS, PACKETS_OF_LONG = 50, 200
# Two ranks and two sums, so that the second one's numbers are in the way of what is left of the first.
RESILIENT = ("all_reduce", "--ranks=2", "--bytes=16384", "--operations=2", "--resilient")
LONG = ("all_reduce", "--ranks=2", "--bytes=65536", "--resilient", "--nics=3")
# With room for one message, a second one is in its way.
CRAMPED = ("all_reduce", "--ranks=2", "--bytes=16384", "--resilient", "--slots=1")
PLAIN = ("all_reduce", "--ranks=3", "--bytes=12")
# By day: the first so many trials have as many kinds of events as twice as many.
SAMPLE = 15
# Few trials meet a timer that is none of theirs.
PLACED = 0.99
LOSSES = ("down-before", "down-after", "far-before", "far-after")
ATTACHED = ("--bytes=4096", "--operations=40")
FAILOVER_EVENTS = "down-after,far-after,down-after+repaired"
# UCX on RDMA devices of SoftRoCE, with ranks that take each other to be on other hosts.
MPIRUN = (
    "env UCX_TLS=rc_v,self UCX_IB_GID_INDEX={gid} UCX_UD_VERBS_ETH_DGID_CHECK=n UCX_UD_VERBS_TIMEOUT=5s "
    "MPIR_CVAR_NOLOCAL=1 mpirun.mpich -np 2"
)
MPI = ("attached", "--bytes=64", "--operations=3")
EXACT = Path(__file__).parents[1] / "scenarios" / "attach" / "exact.c"


def exhaust(*words):
    """Run the command; returns its exit code and what it has printed."""
    done = subprocess.run([*EXHAUST, *words], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


@pytest.fixture
def tried(drills, request, tmp_path):
    """`tried(*words)`: exhaust a program, record runs, wrong ones, and how many were as undisturbed until the event."""
    measured = Ledger(drills, request.node.nodeid)

    def run(*words):
        exhaust(*words, f"--run-dir={tmp_path}")
        counted = tally(ledger.read(tmp_path))
        labels = {"program": " ".join(word.lstrip("-") for word in words), "clock": Clock.NONE}
        measured.measure("exhaust.runs", counted.runs, "1", **labels)
        wrong = measured.measure("exhaust.wrong", counted.wrong, "1", at_most=0, **labels)
        assert wrong.outcome is Outcome.PASS, [entry for entry in ledger.read(tmp_path) if entry.verdict == "wrong"]
        assert counted.runs > 0
        measured.measure("exhaust.placed_fraction", counted.placed / counted.runs, "1", **labels)
        return counted

    return run


@pytest.mark.parametrize("runs", [SAMPLE, pytest.param(30, marks=pytest.mark.nightly)])
def test_a_sample_of_a_resilient_sum(tried, runs):
    """Two ranks with two NICs each: exact, whatever happens to one NIC or one packet, and loud if one is killed."""
    counted = tried(*RESILIENT, f"--runs={runs}")
    assert {what for what, ended in counted.outcomes.items() if "loud" in ended} <= {"killed", "both"}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "words",
    [
        ("all_reduce", "--runs=2500"),
        ("all_reduce", "--resilient", "--runs=2500"),
        ("pipeline", "--operations=4", "--runs=1000"),
        ("all_to_all", "--runs=1000"),
    ],
    ids=lambda words: "-".join(word.strip("-") for word in words),
)
def test_every_packet(tried, words):
    """Eight ranks and 64 KiB: every event, at more packets than a slice has."""
    tried(*words)


@pytest.mark.nightly
def test_a_sweep_goes_on_where_it_ended(tmp_path):
    """Two calls of ten runs try other trials than each other, and as a whole what one call of twenty tries."""
    for folder, runs in (("parts", (10, 10)), ("whole", (20,))):
        for number in runs:
            exhaust(*PLAIN, f"--runs={number}", f"--run-dir={tmp_path / folder}")
    parts, whole = (
        [(entry.event, entry.verdict) for entry in ledger.read(tmp_path / folder) if entry.event]
        for folder in ("parts", "whole")
    )
    assert parts == whole
    assert len(set(parts)) == 20


@pytest.fixture
def exact(tmp_path):
    """`exact(mode)`: the word by which the program that checks every byte is attached at both ends."""
    path = tmp_path / "exact"
    subprocess.run(["gcc", "-std=c11", "-D_DEFAULT_SOURCE", "-O2", "-o", path, EXACT, "-libverbs"], check=True)
    return lambda mode: f"--command={path} {mode} {{device}} {{gid}} {{bytes}} {{operations}}"


@pytest.mark.parametrize(
    ("mode", "runs"),
    [("send", SAMPLE), *(pytest.param(mode, 500, marks=pytest.mark.nightly) for mode in ("send", "write", "read"))],
)
def test_an_attached_program(tried, exact, drills, request, tmp_path, mode, runs):
    """It goes on at the other NIC within 50 ms, whatever happens to one or to a packet; loud if an end is killed.

    Until the event its packets are those of the run without it.
    """
    counted = tried("attached", *ATTACHED, f"--runs={runs}", exact(mode))
    lost = [entry for entry in ledger.read(tmp_path) if entry.event and entry.event.what in LOSSES]
    pauses_s = [float(pause) for entry in lost for pause in re.findall(r"longest pause ([\d.]+) s", entry.detail)]
    labels = {"program": mode, "notice": "event", "clock": Clock.VIRTUAL, "losses": len(lost)}
    paused = Ledger(drills, request.node.nodeid).measure("failover.pause_s", max(pauses_s), "s", at_most=0.05, **labels)
    assert paused.outcome is Outcome.PASS, pauses_s
    assert counted.placed >= PLACED * counted.runs
    assert {what for what, ended in counted.outcomes.items() if "loud" in ended} <= {"killed", "both"}


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["send", "write", "read"])
def test_an_attached_program_whose_load_is_shared(tried, exact, mode):
    """Two queue pairs, of which one moves to the other NIC in the middle: exact, or loud if an end is killed."""
    own = "--command=env C4BENCH_BALANCE=1 EXACT_STREAMS=2 EXACT_PAUSE_US=80000 "
    counted = tried("attached", *ATTACHED, "--runs=60", exact(mode).replace("--command=", own))
    assert {what for what, ended in counted.outcomes.items() if "loud" in ended} <= {"killed", "both"}


@pytest.mark.nightly
def test_an_mpi_job(tried, tmp_path):
    """Two ranks' all-to-alls, started by mpirun."""
    if not shutil.which("mpicc.mpich"):
        pytest.skip("no-mpicc.mpich: install libmpich-dev")
    path = tmp_path / "all_to_all"
    subprocess.run(["mpicc.mpich", "-O2", "-o", path, EXACT.with_name("all_to_all.c")], check=True)
    tried(*MPI, "--runs=60", f"--command={MPIRUN} {path} {{bytes}} {{operations}}")


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", failover_mutants.MUTANTS)
def test_a_bug_planted_in_failover_is_found(drills, request, tmp_path, exact, mutant):
    """By one of the modes of the attached program, with a replay of a few packets.

    Without a fence something is wrong only once the old NIC is repaired, while the program runs: it pauses for that.
    """
    planted = failover_mutants.plant(mutant, tmp_path)
    least = 0
    for mode in ("send", "write", "read"):
        folder = tmp_path / mode
        tries = (f"--events={FAILOVER_EVENTS}", "--runs=40", "--shrink=100", f"--before={planted}")
        command = exact(mode).replace("--command=", "--command=env EXACT_PAUSE_US=80000 ")
        exhaust("attached", *ATTACHED, *tries, f"--run-dir={folder}", command)
        if found := [read_replay(path).packets for path in folder.glob("replay-*.json")]:
            least = min(found)
            break
    ledger_of = Ledger(drills, request.node.nodeid)
    right = 0 < least <= PACKETS
    ledger_of.measure(
        "exhaust.mutants_found", float(right), "1", equals=1, clock=Clock.NONE, mutant=mutant, packets=least
    )
    assert right, least


FOUND = {
    "repeated_from_the_senders_oldest": RESILIENT,
    "used_in_the_order_of_arrival": LONG,
    "repeated_grant_too_large": CRAMPED,
    "completion_handled_twice": RESILIENT,
    "buffer_given_back_early": RESILIENT,
    "assumed_delivered": RESILIENT,
    "one_too_many_reported": RESILIENT,
    "repair_forgotten": RESILIENT,
    "old_slot_read": RESILIENT,
    "errors_ignored": PLAIN,
    "failure_kept_secret": PLAIN,
}


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", FOUND)
def test_a_planted_bug_is_found(drills, request, tmp_path, mutant):
    """A bug in the collectives is found, and its replay, of a few packets, goes wrong in a lab of its own."""
    tries = ("--events=down-before,down-after,far-after", "--runs=30", "--shrink=20")
    found, _ = exhaust(*FOUND[mutant], *tries, f"--before={MUTANTS}:{mutant}", f"--run-dir={tmp_path}")
    replays = sorted(tmp_path.glob("replay-*.json"))
    packets = min((read_replay(path).packets for path in replays), default=0)
    again = [exhaust(f"--replay={path}")[0] for path in replays[:1]]
    ledger_of = Ledger(drills, request.node.nodeid)
    most = PACKETS_OF_LONG if FOUND[mutant] is LONG else PACKETS
    right = found == 1 and again == [1] and packets <= most
    ledger_of.measure(
        "exhaust.mutants_found", float(right), "1", equals=1, clock=Clock.NONE, mutant=mutant, packets=packets
    )
    assert right, (found, again, packets)
