"""What is started where: pairs and launchers, and the remote shell that launchers get."""

import os
import subprocess
from pathlib import PurePosixPath

import pytest

from c4bench.attach.launchers import is_launcher, is_open_mpi
from c4bench.attach.starting import (
    COUNTS_FILE,
    SHELL,
    SLOTS_FILE,
    Place,
    is_served,
    launched,
    launcher_environment,
    launcher_files,
    server_and_client,
)
from c4bench.inventory import Access
from c4bench.model.fabric import Host, Nic

OPEN_MPI = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
PRRTE = "mpirun (Open MPI) 5.0.3\n"
HYDRA = "HYDRA build details:\n    Version:                                 4.0.2\n"
HOSTS = [
    Host(name, f"10.9.0.{number}", (Nic(name, 0, f"mlx5_{number}", "eth0", f"10.0.0.{number}", 1e11),))
    for number, name in enumerate(("h1", "h2"), start=1)
]
PLACES = [
    Place(HOSTS[0], Access("10.9.0.1", user="op", port=2222, key_file="/k e y"), lambda: 3),
    Place(HOSTS[1], Access("10.9.0.2", connection="local"), lambda: 5),
]


@pytest.mark.parametrize("name", ["ib_write_bw", "/usr/bin/ib_send_lat", "ucx_perftest", "ibv_rc_pingpong"])
def test_pairs_are_known_by_their_names(name):
    """The client alone gets the server's address, as its last word; each has its own device and GID."""
    words = (name, "-d", "{device}", "-x", "{gid}")
    assert is_served(words)
    server, client = server_and_client(words, words, PLACES, "job", {"X": "{gid}"})
    assert server.argv == (name, "-d", "mlx5_1", "-x", "3")
    assert client.argv == (name, "-d", "mlx5_2", "-x", "5", "10.9.0.1")
    assert (server.host, client.host) == ("h1", "h2")
    assert client.environment == {
        "C4BENCH_JOB": "job",
        "C4BENCH_RANK": "1",
        "C4BENCH_WORLD_SIZE": "2",
        "X": "5",
    }


def test_a_client_with_words_of_its_own_says_where_the_server_is():
    """Nothing is added to them."""
    _, client = server_and_client(("rping", "-s"), ("rping", "-c", "-a", "{server_address}"), PLACES, "job", {})
    assert client.argv == ("rping", "-c", "-a", "10.0.0.1")


@pytest.mark.parametrize(
    ("name", "launches"),
    [
        *(
            (name, True)
            for name in ("mpirun", "/opt/ompi/bin/mpiexec", "mpirun.mpich", "mpiexec.hydra", "prterun", "srun")
        ),
        *((name, False) for name in ("mpicc", "ib_write_bw", "torchrun", "ssh")),
    ],
)
def test_launchers_are_known_by_their_names(name, launches):
    """Also by those that distributions give them."""
    assert is_launcher((name, "-n", "2", "ring")) == launches


def test_open_mpis_ranks_get_the_variables_and_its_daemons_do_not():
    """It passes none on by itself, and refuses -x beside a list of variables."""
    words, own = launched(("mpirun", "-np", "2", "ring"), HOSTS, "10.9.0.9", OPEN_MPI, {"LD_PRELOAD": "/a:/b", "X": ""})
    assert words == ("mpirun", "-x", "LD_PRELOAD=/a:/b", "-x", "X=", "-np", "2", "ring")
    assert own == {}
    assert is_open_mpi(("prterun", "ring"), PRRTE)
    assert not is_open_mpi(("mpirun", "--mca", "mca_base_env_list", "HOME", "ring"), OPEN_MPI)


def test_hydra_and_srun_pass_on_what_they_have():
    """Hydra is named by its address, because hosts may not know its name; srun gets the hosts by their names."""
    assert launched(("mpirun.mpich", "ring"), HOSTS, "10.9.0.9", HYDRA, {"X": "1"}) == (
        ("mpirun.mpich", "-localhost", "10.9.0.9", "ring"),
        {"X": "1"},
    )
    words, _ = launched(("srun", "ring"), HOSTS, "", "slurm 22.05.8", {})
    assert words == ("srun", "--nodelist=h1,h2", "--nodes=2", "ring")


def test_launchers_get_hosts_and_networks_by_their_variables():
    """In each launcher's own format; without a remote shell of ours, PATH and tree stay as they are."""
    files = launcher_files(PLACES, 4)
    assert files[SLOTS_FILE] == "10.9.0.1 slots=4\n10.9.0.2 slots=4\n"
    assert files[COUNTS_FILE] == "10.9.0.1:4\n10.9.0.2:4\n"
    found = launcher_environment(PurePosixPath("/f"), ["10.9.0.1/32", "10.9.0.9/32"], "/bin")
    assert found["OMPI_MCA_oob_tcp_if_include"] == "10.9.0.1/32,10.9.0.9/32"
    assert not [name for name in found if name.startswith("PRTE") and name.endswith("if_include")]
    assert (found["PATH"], found["HYDRA_LAUNCHER_EXEC"]) == ("/f:/bin", f"/f/{SHELL}")
    plain = launcher_environment(PurePosixPath("/f"), [], "")
    assert not {"PATH", "HYDRA_LAUNCHER_EXEC", "OMPI_MCA_oob_tcp_if_include"} & plain.keys()


@pytest.fixture
def shell(tmp_path):
    """The remote shell on a PATH that it is first on, before an `ssh` that prints its words."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder, text in ((ours, launcher_files(PLACES, 1)[SHELL]), (theirs, '#!/bin/sh\nprintf "<%s>" "$@"\n')):
        folder.mkdir()
        (folder / SHELL).write_text(text)
        (folder / SHELL).chmod(0o755)

    def run(*words):
        path = f"{ours}:{theirs}:{os.environ['PATH']}"
        done = subprocess.run([ours / SHELL, *words], env={"PATH": path}, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    return run


def test_the_remote_shell_reaches_hosts_as_the_inventory_says(shell):
    """By the real ssh with the inventory's user, port and key; options of launchers are left out."""
    code, said, _ = shell("-x", "10.9.0.1", "orted", "-mca", 'ess "env"')
    assert code == 0
    assert said.endswith('<-l><op><-p><2222><-i></k e y><-o><IdentitiesOnly=yes><--><10.9.0.1><orted><-mca><ess "env">')


def test_the_remote_shell_knows_local_and_foreign_hosts(shell):
    """A local one is no matter of ssh; one that is not in the inventory is named."""
    assert shell("10.9.0.2", "echo $((1 +", "1))")[1] == "2\n"
    code, _, problem = shell("10.9.0.3", "true")
    assert (code, problem) == (255, "c4bench: 10.9.0.3 is not a host of this program\n")
