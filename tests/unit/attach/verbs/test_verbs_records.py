"""The preloaded library counts exactly what programs do with queue pairs; a device that carries nothing stands in."""

import shutil
import subprocess

import pytest

from c4bench.attach import build, records

BYTES = 1000  # of each message of the driver
RETRY_EXCEEDED = 12


def test_posts_and_completions_are_counted(driver):
    """Messages and bytes posted, completed and arrived; a completion stands for the unsignaled requests before it."""
    running = driver("posts")
    (pair,) = running.queue_pairs
    assert (pair.posted, pair.posted_bytes, pair.read_bytes) == (20, 20 * BYTES, 2 * BYTES)
    assert (pair.completed, pair.completed_bytes) == (17, 17 * BYTES)
    assert (pair.arrived, pair.arrived_bytes) == (7, 7 * 300)
    assert (pair.connected, pair.errors, pair.status) == (True, 0, 0)


def test_a_connection_is_recorded_as_our_ranks_record_it(driver):
    """The telemetry file names both ends, and says what is outstanding, in which state, and since when."""
    (sending,), (arriving,) = (running := driver("posts").telemetry).conns, running.arrivals
    assert (sending.source, sending.destination, sending.qp) == ("10.0.1.5", "10.0.2.9", 17)
    assert (arriving.source, arriving.destination, arriving.qp) == ("10.0.2.9", "10.0.1.5", 99)
    assert (sending.messages, sending.size_bytes, sending.outstanding) == (17, 17 * BYTES, 3)
    assert (sending.state, sending.owed) == ("transfer", 1)  # the driver has looked in vain since
    assert sending.posted in (4, 5)  # of five SENDs, those that the roundest count covers
    assert arriving.messages == 7
    assert sending.source_port == 0xC003  # of flow label 3


def test_who_sleeps_until_a_completion_has_recorded_its_last_posts(driver):
    """It does not come by again; and it waits for what is outstanding as one does that looks for it."""
    (conn,) = driver("woken").telemetry.conns
    assert (conn.outstanding, conn.owed, conn.state) == (2, 1, "transfer")


def test_what_is_never_completed_is_not_awaited(driver):
    """Requests without a completion are outstanding, but nobody waits for them, and their time is not transfer."""
    (sending,) = driver("unsignaled").telemetry.conns
    assert (sending.messages, sending.outstanding, sending.owed, sending.state) == (1, 3, 0, "idle")


def test_computing_is_not_transfer(driver):
    """A program that looks late for what has completed does not make its NIC seem slow."""
    (sending,) = driver("late").telemetry.conns
    assert sending.transfer_s >= 0.03
    assert sending.shared_s < 0.001


def test_refused_requests_are_not_counted(driver):
    """Of twelve requests for a queue of eight, the eight that the device took are counted, and complete."""
    running = driver("refused")
    (pair,) = running.queue_pairs
    assert running.said == ["8 8"]
    assert (pair.posted, pair.completed, pair.completed_bytes) == (12, 12, 12 * BYTES)
    assert running.telemetry.conns[0].outstanding == 0


def test_an_error_is_recorded(driver):
    """Status and vendor's error of the first failed completion, and how many failed; what failed stays outstanding."""
    running = driver("failed")
    (pair,) = running.queue_pairs
    assert (pair.errors, pair.status, pair.vendor_error) == (3, RETRY_EXCEEDED, 0x81)
    assert (pair.posted, pair.completed) == (5, 2)
    assert running.telemetry.conns[0].outstanding == 3


def test_threads_count_as_one(driver):
    """Four threads that post to and poll one queue pair lose no count."""
    (pair,) = driver("threads").queue_pairs
    assert (pair.posted, pair.completed) == (200_000, 200_000)
    assert pair.completed_bytes == 200_000 * BYTES


def test_a_child_does_not_write_its_parents_records(driver):
    """What a forked child posts is not counted for its parent."""
    (pair,) = driver("forked").queue_pairs
    assert (pair.posted, pair.completed) == (2, 2)


def test_more_queue_pairs_than_places_work_unrecorded(driver):
    """Of 4,000 queue pairs all work, 1,024 are recorded, and one line says that others are not."""
    running = driver("many")
    assert running.said == ["4000"]
    assert len(running.queue_pairs) == len(running.telemetry.conns) == 1024
    _, said = running.process.communicate()
    assert "c4bench attach: a process records at most 1024 queue pairs: others are not recorded" in said.splitlines()
    assert said.count("\n") == 2  # the other one: there is no agent


def test_queue_pairs_come_and_go(driver):
    """After 3,000 queue pairs there is room for another; the gone ones are listed as such, and in no telemetry."""
    running = driver("come_and_go")
    connected = [pair for pair in running.queue_pairs if pair.connected]
    assert [(pair.number, pair.completed) for pair in connected] == [(17 + 3000, 3)]
    assert [conn.qp for conn in running.telemetry.conns] == [17 + 3000]


def test_without_a_folder_the_program_runs_as_without_the_library(driver, folder):
    """Where nobody has set up records, one line says so, and the program does its work."""
    folder.rmdir()
    running = driver("refused")
    assert running.said == ["8 8"]
    _, said = running.process.communicate()
    assert said.startswith("c4bench attach: nothing is recorded: ")
    assert said.count("\n") == 1


def test_a_program_that_ends_leaves_no_records(driver, folder):
    """The files of a process are gone once it has ended by itself."""
    running = driver("posts")
    assert [pid for pid, _ in records.processes(folder)] == [running.pid]
    running.process.communicate()
    assert list(folder.iterdir()) == []


def test_a_program_that_looks_verbs_up_itself_is_recorded(driver):
    """As NCCL does it; its own look-ups of the next definition, and of versions that do not exist, go on to libc."""
    running = driver("", program="resolver")
    assert running.said == ["1 1"]
    assert [(pair.posted, pair.completed_bytes) for pair in running.queue_pairs] == [(1, 700)]


@pytest.mark.parametrize("program", ["driver", "resolver"])
def test_a_library_in_libibverbs_place_records_the_same(driver, in_place, program):
    """With nothing preloaded: of programs that are linked with libibverbs, and of those that look it up themselves."""
    running = driver("refused", program=program, LD_PRELOAD="", LD_LIBRARY_PATH=f"{in_place}:{in_place.parent}")
    (pair,) = running.queue_pairs
    assert pair.posted == {"driver": 12, "resolver": 1}[program]
    assert running.said == {"driver": ["8 8"], "resolver": ["1 1"]}[program]


def test_of_two_libraries_one_records(driver, in_place, tmp_path):
    """A second one that is preloaded changes nothing; one in libibverbs' place steps aside and says so."""
    second = shutil.copy(build.library("verbs"), tmp_path / "second.so")
    for other in (
        {"LD_PRELOAD": f"{build.library('verbs')}:{second}"},
        {"LD_LIBRARY_PATH": f"{in_place}:{in_place.parent}"},
    ):
        running = driver("refused", **other)
        (pair,) = running.queue_pairs
        assert (pair.posted, pair.completed, running.said) == (12, 12, ["8 8"])
        _, said = running.process.communicate()
        assert said.count("is not watched: the preloaded library watches it") == ("LD_LIBRARY_PATH" in other)


def test_a_device_of_another_layout_is_left_alone(driver, folder):
    """A libibverbs whose contexts this library does not know: the program does its work, and one line says why."""
    running = driver("old")
    assert running.said == ["8 8"]
    _, said = running.process.communicate()
    assert said == "c4bench attach: fake0 is not watched: its context is of libibverbs' first interface\n"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("size", ["12k", "1m"])
def test_full_memory_does_not_end_a_program(driver, folder, size):
    """A store into a full file system would be a SIGBUS: all queue pairs work, and what has no room is not recorded."""
    mount = f'mount -t tmpfs -o size={size} none {folder} && exec "$@"'
    wrap = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    if not shutil.which("unshare") or subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no-mount: nobody can mount a small file system for one process here (unshare)")
    running = driver("many", wrap=wrap)
    assert running.said == ["4000"]
    _, said = running.process.communicate()
    assert "recorded" in said
