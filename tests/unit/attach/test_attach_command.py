"""The environment of attached programs, and the command that sets it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from c4bench.attach import build
from c4bench.attach.environment import obstacle, variables
from c4bench.cli.main import main
from c4bench.errors import UnhealthyError

OURS = [Path("/venv/lib/lab.so"), Path("/venv/lib/verbs.so")]


def test_what_a_user_has_set_stays():
    """Libraries of the user come after ours; places, profiler and job are the user's where named."""
    current = {
        "LD_PRELOAD": "/usr/lib/libtcmalloc.so /venv/lib/verbs.so",
        "C4BENCH_ATTACH_SOCKET": "/run/own.sock",
        "NCCL_PROFILER_PLUGIN": "inspector",
        "C4BENCH_JOB": "mine",
        "HOME": "/root",
    }
    assert variables(OURS, Path("/venv/lib/nccl.so"), current) == {
        "LD_PRELOAD": "/venv/lib/lab.so:/venv/lib/verbs.so:/usr/lib/libtcmalloc.so",
        "C4BENCH_ATTACH_SOCKET": "/run/own.sock",
        "C4BENCH_ATTACH_RECORDS": "/dev/shm/c4bench-attach",
        "NCCL_PROFILER_PLUGIN": "inspector",
        "C4BENCH_JOB": "mine",
    }


def test_nothing_is_named_that_there_is_not():
    """Without a job, none is set."""
    found = variables(OURS, Path("/p.so"), {})
    assert found.keys() == {"LD_PRELOAD", "C4BENCH_ATTACH_SOCKET", "C4BENCH_ATTACH_RECORDS", "NCCL_PROFILER_PLUGIN"}
    assert found["NCCL_PROFILER_PLUGIN"] == "/p.so"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Programs compiled here: one by default, one without the loader."""
    if not shutil.which("gcc"):
        pytest.skip("no-gcc: install gcc")
    folder = tmp_path_factory.mktemp("programs")
    (folder / "main.c").write_text("int main(void) { return 0; }\n")
    for name, options in (("plain", []), ("static", ["-static"]), ("static-pie", ["-static-pie"])):
        subprocess.run(["gcc", *options, "-o", folder / name, folder / "main.c"], check=True)
    return folder


@pytest.mark.parametrize(("name", "why"), [("plain", ""), ("static", "statically"), ("static-pie", "statically")])
def test_static_programs_are_known(programs, name, why):
    """The loader, which preloads libraries, is not called for them; as the loader's own list says."""
    assert why in obstacle(programs / name)
    assert bool(obstacle(programs / name)) == bool(why)
    preloads = subprocess.run([programs / name], env={"LD_TRACE_LOADED_OBJECTS": "1"}, capture_output=True, check=True)
    assert bool(preloads.stdout) == (not why)


def test_programs_with_rights_of_their_own_are_known(programs, tmp_path):
    """Set-uid and set-gid of others; not those of the user who runs it."""
    if os.getuid():
        pytest.skip("root gives files away")
    for mode, owner, why in ((0o4755, (1, 0), "set-uid"), (0o2755, (0, 1), "set-gid"), (0o4755, (0, 0), "")):
        program = shutil.copy(programs / "plain", tmp_path / f"p{mode}{owner[0]}")
        os.chown(program, *owner)
        Path(program).chmod(mode)
        assert obstacle(Path(program)) == (f"it is {why}" if why else "")


def test_a_script_is_what_its_interpreter_is(programs, tmp_path):
    """Its first line names the program that is run; one without is run by a shell."""
    for line, why in ((f"#! {programs}/static -x\n", "it is statically linked"), ("#!/bin/sh\n", ""), ("echo\n", "")):
        (tmp_path / "script").write_text(f"{line}rest\n")
        assert obstacle(tmp_path / "script") == why


def test_a_program_of_another_architecture_is_known(programs, tmp_path):
    """By its header: class, byte order or machine."""
    other = bytearray((programs / "plain").read_bytes())
    other[18] ^= 0xFF
    (tmp_path / "other").write_bytes(other)
    assert obstacle(tmp_path / "other") == "it is of another architecture"


@pytest.mark.parametrize("length", [4, 5, 20, 63, 64, 200])
def test_a_broken_program_is_left_to_the_kernel(programs, tmp_path, length):
    """A file that breaks off is no error of ours."""
    (tmp_path / "broken").write_bytes((programs / "plain").read_bytes()[:length])
    assert isinstance(obstacle(tmp_path / "broken"), str)


@pytest.fixture
def attach(tmp_path):
    """Run `c4bench attach` in a process of its own; returns status, output and complaints."""

    def run(*words, built=True, **environment):
        env = {"PATH": os.environ["PATH"], **environment}
        place = tmp_path if built else tmp_path / "none"
        for name in build.LIBRARIES if built else ():
            shutil.copy(build.library(name), place)
        code = (
            "import sys, c4bench.attach.build as build, pathlib, c4bench.cli.main as main\n"
            "build._PLACE = pathlib.Path(sys.argv.pop(1)); sys.exit(main.main())"
        )
        argv = [sys.executable, "-c", code, str(place), "attach", *words]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    try:
        build.libraries()
    except UnhealthyError as error:
        pytest.skip(f"not-built: {error}")
    return run


SHOW = ("--", "sh", "-c", 'echo "$C4BENCH_JOB $LD_PRELOAD"; exit 7')


def test_a_program_is_run_in_its_place(attach):
    """Status and output are the program's own; ours is preloaded, and the job has a name."""
    code, said, problem = attach("--job", "my job", *SHOW)
    assert (code, problem) == (7, "")
    name, _, preloaded = said.strip().partition(" ")
    assert name == "my-job"
    assert "/verbs-" in preloaded


def test_failover_is_asked_for(attach):
    """Then its library comes before the one that watches; which NIC is whose other one may be given."""
    show = ("--", "sh", "-c", 'echo "$C4BENCH_FAILOVER $LD_PRELOAD"')
    assert attach(*show)[1].startswith(" ")
    code, said, _ = attach("--failover", *show)
    named, _, preloaded = said.strip().partition(" ")
    assert (code, named) == (0, "inventory")
    assert 0 <= preloaded.index("/failover-") < preloaded.index("/verbs-")
    assert attach("--failover", *show, C4BENCH_FAILOVER="a=b")[1].startswith("a=b ")
    shared = ("sh", "-c", 'echo "<$C4BENCH_BALANCE>"')
    assert [attach(*words, "--", *shared)[1] for words in (("--failover", "--balance"), ("--failover",))] == [
        "<1>\n",
        "<>\n",
    ]
    code, _, problem = attach("--balance", *show)
    assert (code, problem) == (2, "c4bench: --balance moves queue pairs as a failover does: give it with --failover\n")
    code, _, problem = attach("--failover", "--in-place", *show)
    assert (code, problem) == (2, "c4bench: --failover is a library to preload: give it without --in-place\n")


def test_a_job_is_named_by_its_launcher_else_by_its_program(attach):
    """A rank that has no job's name must not choose one: others would choose others."""
    assert attach(*SHOW)[1].startswith(f"sh-{os.uname().nodename}-")
    assert attach(*SHOW, SLURM_JOB_ID="7")[1].startswith(" ")  # the ranks are known by Slurm's variables
    code, said, problem = attach(*SHOW, PMI_RANK="1", PMI_SIZE="2")
    assert (code, said[0]) == (7, " ")
    assert problem == "c4bench: attach: pmi names no job that all ranks know: set C4BENCH_JOB, or give --job\n"


def test_what_cannot_be_attached_runs_as_without_it(attach, programs):
    """One line says why; the status is the program's."""
    code, said, problem = attach("--", str(programs / "static"))
    assert (code, said) == (0, "")
    assert problem == f"c4bench: attach: {programs}/static runs as without c4bench: it is statically linked\n"
    code, said, problem = attach(*SHOW, built=False)
    assert (code, said) == (7, " \n")
    assert "sh runs as without c4bench: the library" in problem
    assert problem.count("\n") == 1


def test_open_mpis_ranks_inherit_the_variables(attach):
    """By its own option; the launcher itself has none of them."""
    if not shutil.which("mpirun.openmpi"):
        pytest.skip("no-mpirun.openmpi: install openmpi-bin")
    words = ("--job", "j", "--", "mpirun.openmpi", "--oversubscribe", "-np", "2", *SHOW[1:3], SHOW[3].replace("7", "0"))
    code, said, problem = attach(*words, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    assert code == 0, problem
    assert [line.partition(" ")[0] for line in said.splitlines()] == ["j", "j"]
    assert all("/verbs-" in line for line in said.splitlines())


def test_a_program_that_is_not_there_is_a_usage_error(capsys):
    """With its name."""
    assert main(["attach", "--", "no-such-program"]) == 2
    assert capsys.readouterr().err == "c4bench: no-such-program: no such program on PATH; name it by its path\n"
