"""Small made-up inputs in `cases/`, each with the right answer: who is to blame, as far as the input shows that."""

from tools.cases import FIXTURES, Answer, Truth

CASES = FIXTURES / "cases"

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
            "rank 9 timed out after 1200 s in reduce_scatter_tensor #940 of group 34",
            "so that their numbers are not compared",
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
        says=(
            "to look at: nic gpu-d07/2001:db8:7:2::107", "all 3 share gpu-d07/2001:db8:7:2::107, whoever reports it",
            "(status 5) follow",
        ),
    ),
    Truth(
        "10a-inspector/v43", 0, ("rank job:2",), ((2,),), ("gpu-a02",),
        says=(
            "perhaps to blame: ranks 2 on gpu-a02", "all_reduce (4 ranks): 3 operations (#501-503), bytes 268435456",
            "rank 2 on gpu-a02 came late to 3 of 3", "by 40.7 to 44 ms", "which is no slow network",
        ),
    ),
    Truth(
        "13-flight-recorder/report_missing_rank.txt", 0, ("rank job:10",), ((10,),),
        says=("3 ranks wait in reduce_scatter_tensor #57 of 12; rank 10 came to #56", "only wait: ranks 2, 18, 26"),
    ),
    Truth(
        "13-flight-recorder/report_type_mismatch.txt", 6, ("job job",), ((5,),),
        says=("ranks 5 called broadcast #88", "a bug of the job, which no other host would fix"),
    ),
    Truth(
        "13-flight-recorder/python_dict", 3, ("rank job:1",), ((1,),),
        says=("2 ranks wait in all_gather_into_tensor #8 of 0; rank 1 came to #7",),
    ),
    Truth("17a_flight_recorder_defaults", 12, ("rank job:5",), ((5,),)),
    Truth("17b_flight_recorder_two_behind", 12, ("rank job:3", "rank job:10"), ((3,), (10,))),
    Truth("17c_flight_recorder_all_entries", 16, ("rank job:6", "rank job:13"), ((6,), (13,))),
    Truth("18-ras-as-saved/srun_label.out", 8, ("rank job:6",), ((6,),), ("192.0.2.92",)),
    Truth("18-ras-as-saved/after_a_prompt.json", 0, ("rank job:11",), ((11,),), ("192.0.2.22",)),
    Truth("18-ras-as-saved/two_reports.ndjson", 0, ("rank job:3",), ((3,),), ("192.0.2.20",)),
    Truth("18-ras-as-saved/process_not_found.txt", 16, ("rank job:7",), ((7,),)),
    Truth(
        "18-ras-as-saved/in_a_mail.txt", 0, ("rank 4b398875b8b2a063:21",), ((),), ("198.51.100.66",),
        says=("process 33021 on 198.51.100.66, GPU 5",),
    ),
    Truth("18-ras-as-saved/by_a_logger.txt", 16, ("rank job:3",), ((3,),), ("192.0.2.11",)),
    Truth("18-watchdog-as-saved/group_without_guid.log", 0, ("rank job:5",), ((5,),)),
    Truth("18-watchdog-as-saved/last_started.log", 4, ("rank job:2",), ((2,),)),
    Truth(
        "18-watchdog-as-saved/wrapped.txt", 0, ("job job",), ((),),
        says=("ranks 1, 2, 3, 5, 6, 7 timed out after 1800 s in broadcast #4", "no line of ranks 0, 4", NOBODY),
    ),
    Truth(
        "18-watchdog-as-saved/shipped.json", 0, ("job job",), ((),),
        says=("ranks 0, 1, 3 timed out after 600 s in all_reduce #9 of default_pg", "no line of rank 2", NOBODY),
    ),
    Truth(
        "18-watchdog-as-saved/block_of_zeros.log", 0, ("job job",), ((),),
        says=("ranks 0, 1 timed out after 600 s in all_reduce #9", NOBODY),
    ),
    Truth("18-recorder-as-saved", 4, ("rank job:2",), ((2,),)),
    Truth("18-errors-as-saved/ucx_1_8.log", 0, ("nic fe80::526b:4bff:fecb:bece",), ((),),
          ("fe80::526b:4bff:fecb:bece",)),
    Truth("18-errors-as-saved/ucx_1_16.log", 0, ("nic 203.0.113.5",), ((),), ("203.0.113.5",)),
    Truth("18-errors-as-saved/utf16.log", 0, ("path 192.0.2.50/198.51.100.50>p1/mlx5_0",), ((),)),
    Truth("18-errors-as-saved/prterun.log", 0, ("rank job:14",), ((14,),), ("hpc-b4",)),
    Truth(
        "18-errors-as-saved/srun_list.out", 0, ("rank job:3", "rank job:5", "rank job:9"), ((3,), (5,), (9,)),
        ("gpu3", "gpu5", "gpu-7"),
    ),
    Truth("18-errors-as-saved/monitored_barrier.log", 0, ("rank job:5",), ((5,),)),
    Truth(
        "18-errors-as-saved/exceptions.log", 0, ("nic 192.0.2.33/198.51.100.33",), ((),), ("192.0.2.33",),
        says=("198.51.100.8 had no answer from 192.0.2.33/198.51.100.33",),
    ),
    Truth(
        "18-errors-as-saved/two_nics_of_a_host.log", 0, ("host w3",), ((),), ("w3",),
        says=("2 NICs of w3 give no answer, and none elsewhere: w3/fd00::3:0, w3/fd00::3:1",),
    ),
    Truth("18-errors-as-saved/torchfrtrace.txt", 8, ("rank job:3", "rank job:6"), ((3,), (6,))),
)  # fmt: skip

WRONG = "WRONG RESULTS: "
NO_RATE = ("Gbit/s", "GB/s")
IMPORT, DOCTOR, INVENTORY = ("topology", "import"), ("doctor", "--files"), ("inventory", "check")
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
    Answer(
        "10a-inspector/v40_two_of_six",
        ("reduce_scatter (6 ranks): 2 operations (#7040-7041), bytes 16777216, 1.841 to 1.911 ms, rank 1 on gpu-b01, "
         "rank 4 on gpu-b03; no file of ranks 0, 2-3, 5", "nothing could be told"),
        ("to blame", "2 ranks"), code=4,
    ),
    Answer(
        "10a-inspector/prometheus",
        ("gpu-b02 GPU0, job 80412, a communicator of 4 ranks on 2 nodes: all_reduce of 256-257MB: 146.868 GB/s",
         "2741.6 us", "GPU1", "146.313 GB/s", "averages over an interval, which tell of no rank"),
        ("to blame",), code=4,
    ),
    Answer(
        "10b-inspector/v43_two_communicators",
        ("DP_WORLD 0xc03f8871ab5d10 reduce_scatter (8 ranks): 2 operations (#88, 102), bytes 536870912",
         "all_gather (8 ranks): 1 operation (#89)", "TP_2 0x1d77e2409fca36 all_reduce (2 ranks): 3 operations "
         "(#1502-1503, 1777), bytes 8388608, 0.096 to 0.098 ms, rank 1 on gpu-e02", "send (2 ranks): 1 "
         "operation (#41), bytes 33554432", "dropped 12 records of DP_WORLD"),
        ("to blame",), code=4,
    ),
    Answer(
        "10b-inspector/v40_nine_of_ten",
        ("all_reduce (10 ranks): 2 operations (#33-34), bytes 67108864, 2.95 to 2.989 ms", "no file of ranks 7"),
        ("to blame",), code=4,
    ),
    Answer(
        "10b-inspector/prometheus",
        ("communicator PP 1 of 6 ranks on 3 nodes: broadcast of 512-513KB: 7.2184 GB/s bus bandwidth, 72.67 us",
         "recv of 18-19MB: 24.31 GB/s", "send of 18-19MB: 24.28 GB/s"),
        ("to blame",), code=4,
    ),
    Answer(
        "11-kineto/torch20_no_groups",
        ("6 ranks", "all_gather_into_tensor: 1 operation", "all_reduce: 3 operations",
         "reduce_scatter_tensor: 1 operation", "rank 4 came late to 1 of 3", "(#1), by 60.1 to 60.1 ms, if "
         "clocks agree: it spent 3.09 ms there, others 63.2 ms", "0, 2, 3, 5"),
        ("to blame", "healthy", "no straggler"), code=4,
    ),
    Answer(
        "11-kineto/tensorboard_names",
        ("4 ranks", "all_reduce: 3 operations", "rank 2, a rank that is not known", "(3 of 4): 0, 1, 3"),
        ("rank 17", "rank 19", "to blame", "healthy"), code=4,
    ),
    Answer(
        "12-chakra/pytorch_et.json.gz",
        ("8 ranks;", "group 0: broadcast (8 ranks): 1 operation (#0), bytes 32768 of float, rank 5",
         "group 2: all_gather_into_tensor (4 ranks): 1 operation (#0), bytes 1048576", "no file of ranks 4, 6-7",
         "group 2: all_reduce (4 ranks): 1 operation", "group 0: all_reduce (8 ranks): 1 operation (#1), "
         "bytes 12000000"),
        ("to blame", "wait"), code=4,
    ),
    Answer(
        "12-chakra/chakra.2.et",
        ("all_reduce: 2 operations (#0-1), bytes 2621440, 10485760", "all_gather: 1 operation (#2), bytes 1310720",
         "rank 2"),
        ("to blame",), code=4,
    ),
    Answer(
        "12-chakra/jsonizer.json",
        ("group 3: reduce_scatter: 1 operation (#0), bytes 25165824", "group 3: all_gather: 1 operation (#1), "
         "bytes 8388608", "a rank that is not known"),
        ("to blame",), code=4,
    ),
    Answer(
        "12-chakra/workload_graph.json",
        ("all_to_all: 1 operation (#0), bytes 6291456", "all_reduce: 1 operation (#1), bytes 49152",
         "a rank that is not known"),
        ("to blame",), code=4,
    ),
    Answer(
        "14-cabling/fabric.dot",
        ("between: [leaf-x1/swp33, spine-x1/swp11]", "between: [gpu-a06, leaf-x3/swp18]", "states no speeds"),
        ("rate:",),
        words=IMPORT,
    ),
    Answer("14-cabling/fabric.dot", ("it is Graphviz", "c4bench topology import FILE"), code=2),
    Answer(
        "14-cabling/ibnetdiscover.out",
        ("between: [ib-leaf2/34, ib-spine2/4], rate: 100gbit", "between: [ib-leaf2/33, ib-spine2/3], rate: 200gbit",
         "02aabb0300001100", "aggregation node"),
        words=IMPORT,
    ),
    Answer(
        "14-cabling/topology.conf",
        ("between: [gpu-b011, rack2]", "between: [gpu-b014, rack2]", "between: [rack3, core]", "no ports, no speeds"),
        ("gpu-b012", "gpu-b013", "rate:"),
        words=IMPORT,
    ),
    Answer("14-cabling/fabric.clab.yml", ("[lf3/eth2, sp2/eth3]", "[gpu-w6, lf3/eth21]"), ("rate:",), words=IMPORT),
    Answer(
        "14-cabling/links.csv",
        ("[gpu-k06, tor-3/Ethernet16], rate: 100gbit", "[gpu-k06, tor-3/Ethernet8], rate: 200gbit",
         "[tor-3/Ethernet240, agg-2/Ethernet32], rate: 400gbit"),
        words=IMPORT,
    ),
    Answer(
        "14-cabling/netq_lldp.txt", ("[gpu-y1, leaf-y1/swp7]", "[leaf-y1/swp53, spine-y1/swp3]"),
        ("rate:", "[spine-y1/swp3"), words=IMPORT,
    ),
    Answer(
        "14-cabling/air.json", ("[gpu-v1, leaf-v1/swp5]", "[gpu-v2, leaf-v2/swp5]", "[leaf-v1/swp41, leaf-v2/swp42]"),
        ("rate:",), words=IMPORT,
    ),
    Answer("14-cabling/nccl_topo.xml", ("the inside of one host and no cables",), ("between:",), 2, IMPORT),
    Answer("15-not-an-inventory/topology.conf", ("Slurm topology",), code=2, words=INVENTORY),
    Answer("15-not-an-inventory/exporter.ini", ("not an inventory",), code=2, words=INVENTORY),
    Answer(
        "15-not-an-inventory/service.ini", ("Expected key=value host variable assignment, got: link-monitor",), (), 2,
        INVENTORY,
    ),
    Answer("15-not-an-inventory/hosts_undefined_child.ini", ("undefined group 'gpu_h200'",), (), 2, INVENTORY),
    Answer(
        "16-device-outputs/acl_drops", ("Ethernet24: RX_DRP 4117", "not by the cable", "RULE_DENY_7"), ("BAD",),
        words=DOCTOR,
    ),
    Answer(
        "16-device-outputs/rx_err_growing", ("BAD   Ethernet40: errors grow, RX_ERR 17 to 9803",),
        ("BAD   Ethernet56", "BAD   Ethernet48"), 3, DOCTOR,
    ),
    Answer(
        "16-device-outputs/portstat_json", ("BAD   Ethernet20: errors grow, RX_ERR 1204 to 88916",),
        ("BAD   Ethernet4",), 3, DOCTOR,
    ),
    Answer(
        "16-device-outputs/lldpctl",
        ("ens3f0np0: is cabled to leaf-a3 Ethernet12", "ens1f0np0: is cabled to leaf-b1 Ethernet64",
         "ens1f1np1: is cabled to leaf-b2 Ethernet64"),
        ("BAD",),
        words=DOCTOR,
    ),
    Answer(
        "16-device-outputs/ethtool_symbol_errors",
        ("BAD   ens5f0np0: symbol errors grow, rx_symbol_err_phy 11 to 2885, rx_pcs_symbol_err_phy 19 to 5121",
         "lane 1"),
        ("BAD   ens5f0np0: pauses",), 3, DOCTOR,
    ),
    Answer(
        "16-device-outputs/several_hosts",
        (
            "gpu-p01: rdma link\n  ok    all 2", "gpu-p02: rdma link\n  BAD   mlx5_1 port 1 (ens2): is DOWN",
            "gpu-p03: ethtool -S\n  ?     ens2: rx_symbol_err_phy 613",
            "gpu-p04: ethtool -S\n  ok",
        ),
        ("pdsh", "loop", "BAD   ens"), 3, DOCTOR,
    ),
    Answer(
        "16-device-outputs/eos_errors.txt",
        ("tor-e5:", "?     Et7/1: Symbol 1127", "Et1/1: OutDiscards 220417", "not by the cable", "BAD   Et8/1"),
        ("BAD   Et1/1", "BAD   Et7/1", "Totals"), 3, DOCTOR,
    ),
    Answer(
        "16-device-outputs/rdma_link.txt", ("BAD   mlx5_4 port 1 (ens6f0np0): is DOWN", "DISABLED", "5 of 6"), (), 3,
        DOCTOR,
    ),
    Answer(
        "16-device-outputs/mlnx_qos.txt", ("lossless are packets of DSCP 30, 32-33, 35-39", "DSCP 26"), words=DOCTOR,
    ),
    Answer("16-device-outputs/module_dark.txt", ("channel 3 receives -40.0 dBm", "clean the connector"), (), 3, DOCTOR),
    Answer("16-device-outputs/show_gids.txt", ("BAD   mlx5_2 port 1: has no IPv4 address",), (), 3, DOCTOR),
    Answer("16-device-outputs/rdma_link.txt", ("it is rdma link", "c4bench doctor --files FILE"), code=2),
    Answer(
        "18-tools/timestamps.txt",
        ("8 ranks on dgx-7", "256 MiB: bus bandwidth 402.90 GB/s out of place, 398.91 GB/s in place",
         "0 wrong elements"),
        ("incomplete",),
    ),
    Answer(
        "18-tools/layout_2018.txt",
        ("all_reduce, 4 ranks on hydra-3", "4 MiB: bus bandwidth 33.11 GB/s out of place, 33.47 GB/s in place",
         "28.6017"),
        ("incomplete", WRONG),
    ),
    Answer(
        "18-tools/rccl_more_columns.txt",
        ("rccl-tests HEAD:f1eb1a6 all_reduce, 8 ranks on mi1", "128 MiB: bus bandwidth 305.90 GB/s out of place"),
        ("incomplete", WRONG, "nccl-tests collective"),
    ),
    Answer(
        "18-tools/nccl_tests_cut.json",
        ("reduce_scatter, 6 ranks on a01, a02, a03", "256 MiB: bus bandwidth 139.79 GB/s out of place", "it is cut"),
        ("mean bus", "512 MiB"),
    ),
    Answer(
        "18-tools/rccl.csv",
        ("rccl-tests all_reduce, 8 ranks", "64 MiB: bus bandwidth 157.50 GB/s", "results were not checked"), (WRONG,),
    ),
    Answer("18-tools/quoted.txt", ("4 ranks on r1, r2", "16 MiB: bus bandwidth 9.77 GB/s", "9.54"), ("incomplete",)),
    Answer(
        "18-tools/parallel_shell.txt", ("gather, 8 ranks on d1, d2", "32 MiB: bus bandwidth 55.00 GB/s"),
        ("incomplete",),
    ),
    Answer(
        "18-tools/lost_connection.log",
        ("path 192.0.2.14>c2/mlx5_1, confidence 27%", "8 MiB: bus bandwidth 20.50 GB/s", "incomplete"),
        ("process_ended", "to blame: "),
    ),
    Answer("18-tools/both_ends.json", ("send bidirectional bw, by mlx5_1", "8 MiB: 92.07 Gbit/s; 91.67 Gbit/s")),
    Answer("18-tools/ucx_batch.txt", ("tag_lat_8/tag", "0.87 us", "put_bw_1m", "98.34 Gbit/s"), ("incomplete",)),
    Answer("18-tools/two_slow.csv", ("nic hgx02, confidence 80%", "nic hgx07, confidence 80%"), ("drain",)),
    Answer("18-tools/four_hosts.csv", ("nic n4, confidence 80%", "6 of 12 pairs are slow"), ("drain", "path ")),
    Answer(
        "18-tools/no_connection.csv",
        ("connection_lost), nic hgx04, confidence 80%", "no connection: hgx01 to hgx04"), ("transfer_slow", "drain"),
    ),
    Answer(
        "18-tools/inspector_list.json", ("all_reduce (2 ranks): 2 operations (#1-2)", "no file of ranks 0"),
        ("cannot be used",), code=4,
    ),
    Answer(
        "18-tools/inspector_v5.prom", ("reduce_scatter of 8-9MB: 300 GB/s bus bandwidth, 83 us, on average",),
        ("cannot be used", "999"), code=4,
    ),
    Answer("18-tools/cut.0.et", ("the last message is cut", "group 3: all_gather: 1 operation (#0)"), code=2),
    Answer("18-tools/send_recv", ("group 5: send (2 ranks): 4 operations",), ("mismatch", "to blame", "healthy")),
    Answer(
        "18-tools/broadcast", ("broadcast (4 ranks): 12 operations",), ("to blame", "came late", "healthy"),
    ),
    Answer(
        "18-ras-as-saved/unlike_status.txt",
        ("32 ranks", "26 ranks have status UNKNOWN, 4 ranks have status RUNNING, 2 ranks have status FINALIZE"),
        ("to blame: ", "have called alike"),
        code=4,
    ),
    Answer(
        "18-ras-as-saved/counted_not_listed.txt",
        ("16 ranks", "9 ranks have launched up to operation 12, 7 ranks have launched up to operation 11"),
        ("to blame: ", "have called alike"),
        code=4,
    ),
    Answer(
        "18-ras-as-saved/asynchronous_error.txt",
        ("8 ranks", "rank 5 reported ncclRemoteError (process 5105 on 192.0.2.6)"), ("to blame: ",), code=4,
    ),
    Answer(
        "18-ras-as-saved/all_ok.log.gz",
        ("24 ranks", "1 communicator of 24 ranks: status RUNNING, errors OK", "whether the last calls have ended"),
        ("to blame: ", "of which no file tells anything"),
        code=4,
    ),
    Answer(
        "18-errors-as-saved/gloo.log", ("rank 2: RuntimeError", "do not show who is to blame"), ("to blame: ",), code=4,
    ),
)  # fmt: skip
