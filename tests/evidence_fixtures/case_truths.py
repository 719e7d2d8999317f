"""Small made-up inputs in `cases/`, each with the right answer: who is to blame, as far as the input shows that."""

from pathlib import Path
from typing import NamedTuple

CASES = Path(__file__).parent / "cases"


class Truth(NamedTuple):
    """The right answer to a case.

    `ranks` is the size of the job, 0 where the input does not state it; `blamed` the hosts that it shows as at fault.
    `named` are the components that are named, in the verdicts' order, and `says` what the answer contains.
    """

    case: str
    ranks: int
    named: tuple[str, ...]
    culprits: tuple[tuple[int, ...], ...]
    blamed: tuple[str, ...] = ()
    says: tuple[str, ...] = ()

    @property
    def path(self):
        """The file, or the folder of files."""
        return CASES / self.case


class Answer(NamedTuple):
    """The right answer to a case that is not about ranks: what the command prints, on stdout and stderr.

    All of `says` is in it and nothing of `not_says`. `words` are the command's, before the path; `code` its exit code.
    """

    case: str
    says: tuple[str, ...]
    not_says: tuple[str, ...] = ()
    code: int = 0
    words: tuple[str, ...] = ("detect",)


# Rows of both tables are in the order of cases.
NOBODY = "nobody is known to be to blame"
AGAIN = "a second report of RAS"
TRUTHS = (
    Truth(
        "01a-ras-two-ahead/ras.txt", 24, ("job job",), ((),),
        says=("ahead, and wait: ranks 9-10", "behind: ranks 0-8, 11-23", NOBODY, AGAIN),
    ),
    Truth(
        "01b-ras-five-ahead/ras.txt", 48, ("job job", "job 1fb640c8d3792ae5"), ((), ()),
        says=(
            "ahead, and wait: ranks 28-31, 33", NOBODY, AGAIN,
            "rank 7 of 1fb640c8d3792ae5 is process 21061 on 198.51.100.47, GPU 2; rank 30 of the job",
        ),
    ),
    Truth(
        "02a-ras-missing-rank/ras.txt", 24, ("rank job:13",), ((13,),), ("203.0.113.42",),
        says=("rank 13, process 71264 on 203.0.113.42, GPU 5 as unresponsive",),
    ),
    Truth(
        "02b-ras-missing-ranks/ras.txt", 16, ("host 203.0.113.71",), ((4, 5, 6, 7),), ("203.0.113.71",),
        says=("all 4 processes on 203.0.113.71 as dead", "process 5190", "process 5199 on 203.0.113.71, GPU 3"),
    ),
    Truth(
        "03a-ras-pasted-from-middle/from_group_table.txt", 16, ("rank job:11",), ((11,),), ("192.0.2.24",),
        says=("perhaps to blame: ranks 11 on 192.0.2.24", "rank 11 came to #905", AGAIN),
    ),
    Truth(
        "03a-ras-pasted-from-middle/from_warnings.txt", 0, ("rank 7e92c05af34d1b68:14",), ((),), ("192.0.2.63",),
        says=(
            "a job of unknown size",
            "rank 14 of 7e92c05af34d1b68 is process 13370 on 192.0.2.63, GPU 2; its rank in the job is not stated",
        ),
    ),
    Truth(
        "03b-ras-subgroup-of-bigger-job/two_of_ten.txt", 10, ("rank c2f5803e6a9d471b:0",), ((),), ("192.0.2.72",),
        says=("process 8831 on 192.0.2.72, GPU 2", "its rank in the job is not stated"),
    ),
    Truth(
        "03b-ras-subgroup-of-bigger-job/three_of_twelve.txt", 12, ("rank 48d17be9035fca26:1",), ((),),
        ("198.51.100.92",),
        says=("process 60317 on 198.51.100.92", "rank 1 came to #2203", "its rank in the job is not stated"),
    ),
    Truth(
        "04a-ras-ok-then-watchdog/ras_then_log.txt", 40, ("job job",), ((),),
        says=(
            "rank 23 timed out after 900 s in all_gather_into_tensor #77120 of default_pg",
            "had completed #77119 and called up to #77134", NOBODY,
        ),
    ),
    Truth(
        "04b-watchdog-then-ras-ok/log_then_ras.txt", 12, ("job job",), ((),),
        says=("ranks 2, 7 timed out after 300 s in all_reduce #5066 of default_pg", NOBODY),
    ),
    Truth(
        "05a-watchdog-one-behind/stderr.log", 8, ("rank job:6",), ((6,),),
        says=(
            "perhaps to blame: ranks 6", "rank 6 timed out after 900 s in reduce_scatter_tensor #3811 of default_pg",
            "ranks 1, 4, 7 timed out after 900 s in all_gather_into_tensor #3812", "no line of ranks 0, 2, 3, 5",
        ),
    ),
    Truth(
        "05b-watchdog-groups/coloured.log", 0, ("job job",), ((),),
        says=(
            NOBODY, "rank 5 timed out after 1200 s in all_reduce #118 of group 21", "#118 of group 23",
            "rank 9 timed out after 1200 s in reduce_scatter_tensor #940 of group 34", "numbers are not compared",
        ),
    ),
    Truth(
        "05b-watchdog-groups/timestamps_one_silent.log", 0, ("job job",), ((),),
        says=(
            NOBODY, "ranks 0, 1, 2, 3, 4, 6, 7 timed out after 300 s in broadcast #204 of default_pg",
            "no line of rank 5, on gpu-a02 by the order of ranks", "silence proves nothing",
        ),
    ),
    Truth(
        "06a-nccl-debug-one-pair/nccl.log", 0, ("path gpu-c02/mlx5_3>gpu-c05/mlx5_3",), ((),),
        says=("to look at: path gpu-c02/mlx5_3>gpu-c05/mlx5_3", "does not tell these apart", "(status 5) follow"),
    ),
    Truth(
        "06b-nccl-debug-common-peer/nccl.log", 0, ("nic gpu-d07/2001:db8:7:2::107",), ((),), ("gpu-d07",),
        says=("to look at: nic gpu-d07/2001:db8:7:2::107", "these 3 connections share gpu-d07", "(status 5) follow"),
    ),
    Truth("17a_flight_recorder_defaults", 12, ("rank job:5",), ((5,),)),
    Truth("17b_flight_recorder_two_behind", 12, ("rank job:3", "rank job:10"), ((3,), (10,))),
    Truth("17c_flight_recorder_all_entries", 16, ("rank job:6", "rank job:13"), ((6,), (13,))),
)  # fmt: skip

WRONG = "WRONG RESULTS: "
NO_RATE = ("Gbit/s", "GB/s")
ANSWERS = (
    Answer(
        "07a-nccl-tests/cut_in_row.txt",
        ("16 ranks on gpu-f01, gpu-f02", "16 MiB: bus bandwidth 40.96 GB/s out of place, 41.92 GB/s in place",
         "incomplete: it ends in the row of 33554432 bytes", "to go on to 2147483648 bytes"),
        ("mean bus", "32 MiB", WRONG),
    ),
    Answer(
        "07a-nccl-tests/mpirun_prefix.txt",
        ("8 ranks on gpu-b03, gpu-b04", "256 MiB: bus bandwidth 93.28 GB/s out of place, 92.76 GB/s in place",
         "16 MiB: bus bandwidth 85.23 GB/s out of place, 84.64 GB/s in place", "77.4396", "0 wrong elements"),
        ("incomplete", WRONG),
    ),
    Answer(
        "07a-nccl-tests/old_layout.txt",
        ("4 ranks on gpu-e04", "128 MiB: bus bandwidth 116.58 GB/s out of place, 114.85 GB/s in place", "112.057",
         "0 values out of bounds"),
        ("incomplete", WRONG),
    ),
    Answer(
        "07a-nccl-tests/wrong_results.txt",
        (WRONG, "12 ranks on gpu-c11, gpu-c12, gpu-c14", "48 elements at 256 MiB out of place",
         "1536 elements at 1 GiB out of place", "912 elements at 1 GiB in place", "3 FAILED",
         "nobody is known to be the cause"),
        ("to blame: ", "incomplete"),
    ),
    Answer(
        "07b-nccl-tests/cut_after_heading.txt",
        ("6 ranks on gpu-d02, gpu-d03, gpu-d04", "it measured no size: it hung or failed in the first, or"),
        ("GB/s", "Gbit/s"),
        code=4,
    ),
    Answer(
        "07b-nccl-tests/mpirun5_prefix.txt",
        ("4 ranks on trainer-0, trainer-1, trainer-2, trainer-3",
         "32 MiB: bus bandwidth 2.71 GB/s out of place, 2.66 GB/s in place", "2.15234", "0 wrong elements"),
        ("incomplete", WRONG),
    ),
    Answer(
        "07b-nccl-tests/newest_layout.txt",
        ("nccl-tests 2.19.6 all_reduce, 6 ranks on gpu-g01, gpu-g02, gpu-g05",
         "16 GiB: bus bandwidth 310.25 GB/s out of place, 307.79 GB/s in place", "307.902", "0 wrong elements"),
        ("incomplete", WRONG),
    ),
    Answer(
        "07b-nccl-tests/old_layout_all_gather.txt",
        ("all_gather, 8 ranks on gpu-h02", "64 MiB: bus bandwidth 125.10 GB/s out of place, 123.28 GB/s in place",
         "104.383", "0 values out of bounds"),
        ("incomplete", WRONG),
    ),
    Answer(
        "07b-nccl-tests/wrong_alltoall.txt",
        (WRONG, "all_to_all, 4 ranks on gpu-a07", "7 elements at 64 MiB out of place; 1 FAILED",
         "in place was not checked", "256 MiB: bus bandwidth 38.19 GB/s out of place, 37.93 GB/s in place"),
    ),
    Answer(
        "08a-perftest/ib_write_bw_gbit.txt",
        ("write bw, by mlx5_4 with 4 QPs between 198.51.100.77 and 198.51.100.78", "8 MiB: 187.10 Gbit/s",
         "64 KiB: 186.75 Gbit/s", "4 KiB: 170.88 Gbit/s"),
        ("latency", "incomplete"),
    ),
    Answer(
        "08a-perftest/ib_send_lat.txt",
        ("send latency, by mlx5_bond_0",
         "64 B: latency mean 1.83 us, typical 1.78 us, 99 % 2.06 us, 99.9 % 9.86 us, longest 9.86 us"),
        (*NO_RATE, "incomplete"),
    ),
    Answer(
        "08a-perftest/lat_old_unquoted.json",
        ("send latency, by mlx5_1", "512 B: latency mean 1.59 us", "99.9 % 12.40 us, longest 41.93 us"), NO_RATE,
    ),
    Answer(
        "08a-perftest/lat_new_quoted.json",
        ("write latency, by mlx5_6", "8 B: latency mean 2.11 us", "99 % 2.31 us, 99.9 % 4.77 us, longest 17.65 us"),
        NO_RATE,
    ),
    Answer(
        "08b-perftest/ib_send_bw_mb.txt", ("send bw, by rocep65s0", "256 KiB: 24.35 Gbit/s"), ("latency", "incomplete"),
    ),
    Answer(
        "08b-perftest/ib_read_lat_all_sizes.txt",
        ("read latency, by mlx5_0", "2 B: latency mean 1.07 us", "64 B: latency mean 1.08 us",
         "4 KiB: latency mean 2.01 us"),
        (*NO_RATE, "incomplete"),
    ),
    Answer(
        "08b-perftest/lat_old_unquoted_rdma_cm.json",
        ("read latency, by irdma0", "32 KiB: latency mean 9.20 us", "longest 30.11 us"), NO_RATE,
    ),
    Answer(
        "08b-perftest/lat_new_cpu_util.json",
        ("send latency, by mlx4_0", "2 B: latency mean 1.24 us", "99 % 1.47 us"), NO_RATE,
    ),
    Answer(
        "09a-rccl-tests-json-lines/out.json",
        ("rccl-tests all_gather, 12 ranks", "256 MiB: bus bandwidth 88.57 GB/s out of place, 86.81 GB/s in place",
         "0 wrong elements"),
        (WRONG, "incomplete"),
    ),
    Answer(
        "09b-rccl-tests-json-array/out.json",
        (WRONG, "rccl-tests all_reduce, 8 ranks: 4 elements at 16 MiB in place",
         "128 MiB: bus bandwidth 259.92 GB/s out of place, 256.38 GB/s in place"),
    ),
)  # fmt: skip
