"""Figures in what benchmarks print."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from c4bench.evidence.printed import Figure, figures, runs

# As perftest 4.5, UCX 1.13.1, qperf 0.4.11 and rdma-core 44 printed it, without the lines about connections.
RULE = "-" * 87
WRITE_BW = f"""\
{RULE}
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : h1r0
{RULE}
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      100              413.99             188.03 		   0.003008
{RULE}
"""
IN_GIGABITS = f"""\
                    RDMA_Write BW Test
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      100              2.51               2.11   		   0.004021
{RULE}
"""
READ_LAT = """\
                    RDMA_Read Latency Test
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       100          13.16          1602.08      13.48    	       24.57       	93.24  		1602.08 		1602.08
"""  # noqa: E501
NO_TICKS = READ_LAT.replace("13.16          1602.08      13.48", "inf            inf          inf")
UCX_BW = """\
+--------------+--------------+------------------------------+---------------------+-----------------------+
|              |              |       overhead (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
[thread 0]                42      0.080  1300.359  1300.359       40.01      40.02         764         764
Final:                   100      0.090  1309.359  1309.359       47.03      47.73         764         764
"""
UCX_LAT = UCX_BW.replace("overhead (usec) ", "latency (usec)  ")
QPERF = """\
tcp_bw:
    bw              =   687 MB/sec
    msg_rate        =  10.5 K/sec
    time            =     1 sec
    send_cpus_used  =   100 % cpus
tcp_lat:
    latency  =  66.4 us
rc_bw:
    bw  =  1.23 GB/sec
conf:
    loc_cpu    =  2 Cores: AMD EPYC
"""
PINGPONG = """\
  local address:  LID 0x0000, QPN 0x000018, PSN 0x6feb2a, GID ::ffff:10.1.0.1
13107200 bytes in 2.46 seconds = 42.64 Mbit/sec
100 iters in 2.46 seconds = 24592.29 usec/iter
"""
# As published: nccl-tests on eight GPUs, and OSU's benchmarks by version 5.6 and 7.
NCCL = """\
# Using devices
#  Rank  0 Group  0 Pid   1728 on gpu01 device  0 [0000:0f:00] NVIDIA A100-SXM4-40GB
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   536870912     134217728     float     sum      -1   2591.9  207.14  362.49      0   2589.3  207.34  362.84      0
  1073741824     268435456     float     sum      -1    13867   77.43  135.50      1    13877   77.38  135.41      2
# Out of bounds values : 3 FAILED
# Avg bus bandwidth    : 249.06
"""
UNCHECKED = (
    " 0:    134217728       2097152     float    none      -1   "
    "1061.1  126.49  118.59    N/A   1058.4  126.82  118.89    N/A\n"
)
OSU_BW = "# OSU MPI Bandwidth Test v5.6.2\n# Size      Bandwidth (MB/s)\n1                       3.47\n4096 1175.40\n"
OSU_ALLREDUCE = (
    "# OSU MPI Allreduce Latency Test v7.0\n# Datatype: MPI_INT.\n"
    "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n"
    "1048576  1622.41  1600.0  1650.2  100\n"
)
OSU_BARRIER = "# OSU MPI Barrier Latency Test v5.9\n# Avg Latency(us)\n             2.31\n"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        # 65,536 bytes 3,008 times a second: the message rate beside it says how large perftest's MB is
        (WRITE_BW, [("perftest", "write bw", 3008 * 65536 * 8, "bit/s", 65536, None)]),
        (IN_GIGABITS, [("perftest", "write bw", 2.11e9, "bit/s", 65536, None)]),
        (READ_LAT, [("perftest", "read latency", 13.48e-6, "s", 2, None)]),
        (UCX_BW, [("ucx_perftest", "bandwidth", 764 * 65536 * 8, "bit/s", 0, None)]),
        (UCX_LAT, [("ucx_perftest", "latency", 1309.359e-6, "s", 0, None)]),
        (
            QPERF,
            [
                ("qperf", "tcp_bw", 5.496e9, "bit/s", 0, None),
                ("qperf", "tcp_lat", 66.4e-6, "s", 0, None),
                ("qperf", "rc_bw", 9.84e9, "bit/s", 0, None),
            ],
        ),
        (PINGPONG, [("ibv_pingpong", "both directions", 42.64e6, "bit/s", 0, None)]),
        (
            NCCL,
            [
                ("nccl-tests", "busbw", 362.49 * 8e9, "bit/s", 536870912, 0),
                ("nccl-tests", "busbw", 135.5 * 8e9, "bit/s", 1073741824, 3),
            ],
        ),
        (UNCHECKED, [("nccl-tests", "busbw", 118.59 * 8e9, "bit/s", 134217728, None)]),
        (
            OSU_BW,
            [
                ("osu", "mpi bandwidth", 27.76e6, "bit/s", 1, None),
                ("osu", "mpi bandwidth", 9403.2e6, "bit/s", 4096, None),
            ],
        ),
        (OSU_ALLREDUCE, [("osu", "mpi allreduce latency", 1622.41e-6, "s", 1048576, None)]),
        (OSU_BARRIER, [("osu", "mpi barrier latency", 2.31e-6, "s", 0, None)]),
    ],
)
def test_each_tools_figures_are_read(output, expected):
    """Rates in bit/s and times in seconds, whatever the tool's unit; the size and what was wrong beside them."""
    found = figures(output)
    assert [one.value for one in found] == pytest.approx([row[2] for row in expected], rel=2e-3)
    assert [(one.tool, one.name, one.unit, one.size_bytes, one.wrong) for one in found] == [
        (tool, name, unit, size, wrong) for tool, name, _, unit, size, wrong in expected
    ]


@pytest.mark.parametrize(
    "output", ["", "mpirun: command not found\n", NO_TICKS, WRITE_BW.partition("\n 65536")[0], PINGPONG[:120]]
)
def test_what_is_no_figure_is_none(output):
    """No output, another program's, a time that is infinite, and output that breaks off before its figure."""
    assert figures(output) == ()


@pytest.mark.parametrize("label", ["[1,0]<stdout>:", "  3: "])
def test_labels_of_launchers_are_left_out(label):
    """Launchers such as mpirun and srun can put the rank before each line."""
    labelled = "".join(f"{label}{line}\n" for line in OSU_BW.splitlines())
    assert figures(labelled) == figures(OSU_BW)


TOOLS = [WRITE_BW, READ_LAT, UCX_BW, QPERF, PINGPONG, NCCL, OSU_BW]


@given(st.sampled_from(TOOLS), st.integers(0, 400), st.integers(0, 40), st.text(max_size=20))
@example(OSU_BW, OSU_BW.index("4096"), 4, "inf")
@example(NCCL, NCCL.index("536870912"), 9, "9" * 5000)
def test_mutated_output_never_fails(output, start, length, put):
    """Whatever a program prints gives figures, or none."""
    for figure in figures(output[:start] + put + output[start + length :]):
        assert isinstance(figure, Figure)
        assert figure.unit in {"bit/s", "s"}


LINES = NCCL.splitlines()


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "Tue Apr 14 12:22:33 2026[1,0]<stdout>:",
        " 0: ",
        "2026-04-14T12:22:33.123456789Z stdout F ",
        "\x1b[2m",
    ],
)
def test_a_table_is_read_behind_any_prefix(prefix):
    """Launchers, log shippers and colours put something before each line; the run is the same."""
    assert runs("".join(f"{prefix}{line}\n" for line in LINES)) == runs(NCCL)


def test_a_row_that_other_output_breaks_is_put_together():
    """NCCL's own lines come between the size of a row and its figures, which are written later."""
    size, rest = LINES[5][:53], LINES[5][53:]
    broken = "\n".join([*LINES[:5], f"{size}gpu01:17:18 [0] NCCL INFO Channel 00/0", "gpu01:17:18 NCCL INFO ok", rest,
                        *LINES[6:], ""])  # fmt: skip
    assert runs(broken) == runs(NCCL)


def test_runs_one_after_the_other_are_told_apart():
    """Each run has the collective of its own command line, also where another one came before it."""
    settings = "# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) validation: 1"
    one, other = (f"$ ./build/{name}_perf -b 8\n{settings}\n{NCCL}" for name in ("reduce_scatter", "broadcast"))
    assert [run.kind for run in runs(one + other)] == ["reduce_scatter", "broadcast"]


@pytest.mark.parametrize(
    ("tool", "end"), [(NCCL, "\n# Avg"), (NCCL, "135.41"), (WRITE_BW, "0.003008"), (WRITE_BW, RULE)]
)
def test_output_that_breaks_off_says_so(tool, end):
    """Of a table that breaks off only whole rows are used, and the run says that it may be cut."""
    (whole,) = runs(tool)
    (cut,) = runs(tool[: tool.rindex(end)])
    assert (whole.cut, "the text is cut" in cut.cut) == ("", True)
    assert set(cut.rows) <= set(whole.rows)
    assert cut.mean_bps == -1
