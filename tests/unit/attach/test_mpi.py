"""Unmodified MPI programs with the preloaded library, on the MPIs of this machine (`mpi_rank.c`)."""

import json
import os
import re
import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from attached_watch import Watch
from compiled_libraries import compiled

from c4bench.collective.ring_reader import read_telemetry_file
from c4bench.model.diagnosis import Cause

SOURCE = Path(__file__).with_name("mpi_rank.c")
# By MPI: how its ranks start, and the variable that has their number. Ranks of Open MPI let others run while they wait.
MPIS = {
    "openmpi": (
        ("mpirun.openmpi", "--oversubscribe", "--mca", "btl", "self,vader", "--mca", "mpi_yield_when_idle", "1"),
        "OMPI_COMM_WORLD_RANK",
    ),
    "mpich": (("mpiexec.mpich",), "PMI_RANK"),
}


@pytest.fixture(scope="module")
def mpi_library():
    """The library for MPI programs, compiled."""
    return compiled("mpi")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The program, compiled with an MPI's own compiler when it is first asked for."""
    folder, compiled = tmp_path_factory.mktemp("mpi"), {}

    def program(mpi):
        if shutil.which(f"mpicc.{mpi}") is None:
            pytest.skip(f"mpicc.{mpi} is missing (Debian: lib{mpi}-dev)")
        if mpi not in compiled:
            compiled[mpi] = folder / mpi
            subprocess.run([f"mpicc.{mpi}", "-o", str(compiled[mpi]), str(SOURCE)], check=True)
        return compiled[mpi]

    return program


@contextmanager
def running(program, library, folder, ranks, *words, **more):
    """A job of as many ranks, each on its own host, and its telemetry."""
    launch, number = MPIS[program.name]
    script = f"export C4BENCH_RANK=${number} LD_PRELOAD={library}; exec {program} {' '.join(map(str, words))}"
    names = {"C4BENCH_ATTACH_RECORDS": str(folder), "C4BENCH_JOB": "train"}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [*launch, "-n", str(ranks), "sh", "-c", script]
    process = subprocess.Popen(command, env={**os.environ, **names, **root, **more}, stderr=subprocess.DEVNULL)
    try:
        yield process, Watch(folder, ranks)
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("mpi", MPIS)
def test_a_program_runs_as_without_the_library(programs, mpi_library, tmp_path, mpi):
    """Its results are right, and nothing is left behind when it has ended."""
    with running(programs(mpi), mpi_library, tmp_path, 2, 4, -1, "none", 0) as (process, _):
        assert process.wait(60) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mpi", MPIS)
def test_collectives_of_each_communicator_are_recorded(programs, mpi_library, tmp_path, mpi):
    """Ranks give each communicator the same name, and number its calls alike; one of a rank alone is left out."""
    with running(programs(mpi), mpi_library, tmp_path, 2, 100, 1, "busy", 3) as (_, watch):
        watch.until_entered(3)
        while not all(op.finished_s >= op.entered_s for op in read_telemetry_file(watch.rings[1]).ops):
            watch.watch(0.1)
        snapshots = [read_telemetry_file(watch.rings[rank]) for rank in range(2)]
    world, dup = (record.comm for record in sorted(snapshots[0].comms, key=lambda record: record.comm, reverse=True))
    assert world == "mpi-world"
    assert re.fullmatch(r"mpi-[0-9a-f]{16}-1", dup)
    for rank, snapshot in enumerate(snapshots):
        assert {record.comm for record in snapshot.comms} == {world, dup}
        first = next(record for record in snapshot.comms if record.comm == world).members[0]
        assert (first.rank, first.host) == (rank, "")
        ops = {(op.comm, op.seq): (op.kind, op.dtype, op.size_bytes) for op in snapshot.ops}
        entered = {(world, seq): ("all_reduce", "double", 8 << 16) for seq in range(4 - rank)}
        assert ops == entered | {(dup, seq): ("broadcast@0", "", 4) for seq in range(3)}
    running_now = [(op.comm, op.seq) for op in snapshots[0].ops if not op.finished_s]
    assert running_now == [(world, 3)]


@pytest.mark.parametrize("mpi", ["openmpi", pytest.param("mpich", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("how", "cause", "component"),
    [
        ("busy", Cause.NOT_ENTERED, "rank train:1"),
        pytest.param("function", Cause.COLLECTIVE_TYPE_MISMATCH, "job train", marks=pytest.mark.nightly),
    ],
)
def test_a_hang_is_named(programs, mpi_library, tmp_path, mpi, how, cause, component):
    """C4D names the rank that does not call the collective in which the others wait, and who calls another one."""
    with running(programs(mpi), mpi_library, tmp_path, 3, 100, 1, how, 20) as (_, watch):
        diagnosis = watch.until(lambda found: found.cause is cause)
    assert str(diagnosis.component) == component
    assert {op.collective_seq_id for op in diagnosis.operations} == {20}


def test_a_program_without_rdma_is_followed(programs, mpi_library, tmp_path):
    """Each rank introduces itself to the agent at its first collective, with its launcher's word for which it is."""
    listener, heard = socket.socket(socket.AF_UNIX), []
    listener.bind(str(tmp_path / "agent"))
    listener.listen()
    listener.settimeout(60)
    (tmp_path / "records").mkdir()
    names = {"C4BENCH_ATTACH_SOCKET": str(tmp_path / "agent")}
    libraries = f"{compiled('verbs')}:{mpi_library}"
    with running(programs("openmpi"), libraries, tmp_path / "records", 2, 1000, 1, "busy", 3, **names):
        for _ in range(2):
            connection, _ = listener.accept()
            with connection, connection.makefile() as lines:
                heard.append(json.loads(lines.readline()))
    listener.close()
    assert {one["environment"]["OMPI_COMM_WORLD_RANK"] for one in heard} == {"0", "1"}
    assert all(re.fullmatch(r"[0-9]+\.ring", one["ring"]) for one in heard)


def test_it_steps_aside(programs, mpi_library, tmp_path):
    """Without a folder for records the program runs, and each process says so in one line."""
    command = [*MPIS["openmpi"][0], "-n", "2", "-x", f"LD_PRELOAD={mpi_library}", str(programs("openmpi"))]
    names = {"C4BENCH_ATTACH_RECORDS": str(tmp_path / "nowhere"), "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    environment = {**os.environ, **names, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        [*command, "2", "-1", "none", "0"], env=environment, capture_output=True, text=True, check=True
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("c4bench")]
    assert len(said) == 2
    assert all("MPI is not recorded: No such file or directory" in line for line in said)
