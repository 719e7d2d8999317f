"""Which job and rank a process is, from the environments that launchers give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.attach.launchers import VARIABLES, Identity, identify

# As `mpirun -n 2 env` of Open MPI 4.1.4 and of MPICH 4.0.2 print them, without what no launcher is known by.
OPEN_MPI = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_MCA_ess_base_jobid": "1450770433",
    "OMPI_UNIVERSE_SIZE": "2",
    "PMIX_ID": "1450770433.1",
    "PMIX_NAMESPACE": "1450770433",
    "PMIX_RANK": "1",
}
MPICH = {"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1", "PMI_FD": "8", "PMI_RANK": "1", "PMI_SIZE": "2"}
# As srun(1) and torchrun document theirs.
STEP = {
    "SLURM_JOB_ID": "1234",
    "SLURM_JOBID": "1234",
    "SLURM_STEP_ID": "3",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
}
BATCH = {"SLURM_JOB_ID": "1234", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
DAEMON = BATCH | {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
TORCHRUN = {
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "gpu01",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
KNOWN = {
    "nothing": ({"PATH": "/bin", "RANK": "3"}, Identity()),
    "Open MPI": (OPEN_MPI, Identity("mpi-1450770433", 1, 2, "openmpi")),
    "Open MPI 5": (
        OPEN_MPI | {"PMIX_NAMESPACE": "prterun-gpu01-77@1"},
        Identity("mpi-prterun-gpu01-77-1", 1, 2, "openmpi"),
    ),
    "MPICH": (MPICH, Identity("", 1, 2, "pmi")),
    "srun": (STEP, Identity("slurm-1234-3", 5, 8, "slurm")),
    "srun with PMIx": (
        STEP | {"PMIX_RANK": "5", "PMIX_NAMESPACE": "slurm.pmix.1234.3"},
        Identity("slurm-1234-3", 5, None, "pmix"),
    ),
    "another PMIx launcher under srun": (
        DAEMON | {"PMIX_RANK": "6", "PMIX_NAMESPACE": "prterun-7@1"},
        Identity("slurm-1234-mpi-prterun-7-1", 6, None, "pmix"),
    ),
    "srun with PMI-2": (
        STEP | {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_JOBID": "1234.3"},
        Identity("slurm-1234-3", 5, 8, "pmi"),
    ),
    "a batch script itself": (BATCH, Identity("slurm-1234")),
    "PMIx alone": ({"PMIX_RANK": "4", "PMIX_NAMESPACE": "17@1"}, Identity("mpi-17-1", 4, None, "pmix")),
    "another PMI": (MPICH | {"PMI_JOBID": "kvs_7"}, Identity("mpi-kvs_7", 1, 2, "pmi")),
    "torchrun": (TORCHRUN, Identity("torchrun-gpu01-29500", 9, 16, "torchrun")),
    "torchrun with a run id": (
        TORCHRUN | {"TORCHELASTIC_RUN_ID": "llama 7"},
        Identity("torchrun-llama-7", 9, 16, "torchrun"),
    ),
    "torchrun under srun": (STEP | TORCHRUN, Identity("slurm-1234-torchrun-gpu01-29500", 9, 16, "torchrun")),
    "pods of PyTorch": (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "C4BENCH_JOB": "team/job"},
        Identity("team-job", 1, 2, "torch"),
    ),
    "an indexed job of Kubernetes": (
        {"JOB_COMPLETION_INDEX": "3", "C4BENCH_JOB": "train-x1", "C4BENCH_WORLD_SIZE": "4"},
        Identity("train-x1", 3, 4, "kubernetes"),
    ),
    "what a user says": (
        OPEN_MPI | {"C4BENCH_JOB": "mine", "C4BENCH_RANK": "0", "C4BENCH_WORLD_SIZE": "4"},
        Identity("mine", 0, 4, "c4bench"),
    ),
}


@pytest.mark.parametrize("environment", KNOWN)
def test_each_launchers_ranks_are_known(environment):
    """Job, rank and number of ranks, as each launcher's variables say."""
    variables, expected = KNOWN[environment]
    assert identify(variables) == expected


def test_all_ranks_of_mpirun_in_a_slurm_job_have_one_name():
    """On mpirun's own host ranks have no step of Slurm, elsewhere that of mpirun's daemons; its name is left out."""
    here, there = (identify(variables | OPEN_MPI) for variables in (BATCH, DAEMON))
    assert here.job == there.job == "slurm-1234-mpi-1450770433"
    assert (here.rank, here.size) == (there.rank, there.size) == (1, 2)


def test_two_launches_in_one_allocation_are_two_jobs():
    """Both have a rank 0: one name would have it twice."""
    assert identify(STEP).job != identify(STEP | {"SLURM_STEP_ID": "4"}).job
    assert identify(BATCH | OPEN_MPI).job != identify(BATCH | OPEN_MPI | {"PMIX_NAMESPACE": "7"}).job


@pytest.mark.parametrize("rank", ["", "-1", "x", "1.5", "2", "99999999999", "\u0661"])
def test_a_rank_that_makes_no_sense_is_none(rank):
    """No number, or one that is not below the number of ranks, is not given."""
    assert identify({"PMI_RANK": rank, "PMI_SIZE": "2"}) == Identity()


@given(st.dictionaries(st.sampled_from(VARIABLES), st.text() | st.integers(-1, 300).map(str)))
def test_any_environment_gives_a_safe_name_and_a_possible_rank(environment):
    """Whatever the variables hold, the job's name fits into a path and the rank is one of the job's."""
    found = identify(environment)
    assert "/" not in found.job
    assert not found.job.startswith(".")
    assert len(found.job) <= 128
    assert (found.rank is None) == (not found.launcher)
    assert found.size is None or 0 <= found.rank < found.size


def test_only_the_named_variables_are_read():
    """Who sends these variables to an agent has sent all that it needs."""
    read = set()

    class Watched(dict):
        def get(self, name, default=None):
            read.add(name)
            return super().get(name, default)

        def __getitem__(self, name):
            read.add(name)
            return super().__getitem__(name)

    for variables, _ in KNOWN.values():
        identify(Watched(variables))
    assert read <= set(VARIABLES)
    assert read >= {"SLURM_STEP_ID", "PMIX_NAMESPACE", "RANK"}
