"""Folders of results between pairs of NICs: which NIC is slow or cannot be reached, and what is not known."""

import itertools
import json
import random

import pytest

from c4bench.cli.main import main
from c4bench.evidence.benchmarks.ends import in_name
from c4bench.evidence.judging.pairs import PairwiseRuns
from c4bench.model.evidence import BenchmarkRow, BenchmarkRun

HOSTS = [f"gpu-a{number:02}" for number in range(1, 7)]
RULE = "-" * 87
UNREACHABLE = """\
 Couldn't connect to 192.0.2.5:18515
Unable to open file descriptor for socket connection Unable to init the socket connection
"""


def output(gbit_s, client=None, server=None, *, serves=False, test="RDMA_Write BW"):
    """What perftest prints at one end of a pair; ends are the last numbers of addresses, if they are printed."""
    lines = ["* Waiting for client to connect... *"] if serves else []
    lines += [RULE, f"                    {test} Test", " Dual-port       : OFF\t\tDevice         : mlx5_0"]
    for name, end in zip(("local", "remote"), (server, client) if serves else (client, server), strict=True):
        if end is not None:
            lines += [f" {name} address: LID 0000 QPN 0x0a1f PSN 0x9c2f11",
                      f" GID: {':'.join(['00'] * 10)}:255:255:192:00:02:{end:02}"]  # fmt: skip
    lines += [" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]",
              f" 65536      5000             {gbit_s:.2f}            {gbit_s:.2f}     0.1", RULE, ""]  # fmt: skip
    return "\n".join(lines)


def rate(source, destination, slow="", side="both"):
    """Gbit/s from one host to another, of which `slow` sends, receives, or does both, at 80 in place of 190."""
    bad = (source == slow and side in ("tx", "both")) or (destination == slow and side in ("rx", "both"))
    return (80.0 if bad else 190.0) + (HOSTS.index(source) - HOSTS.index(destination)) / 10


def judged(capsys, *paths):
    code = main(["detect", "--json", *map(str, paths)])
    return code, json.loads(capsys.readouterr().out)


def component(report):
    return [
        (
            one["diagnosis"]["component"]["kind"],
            one["diagnosis"]["component"]["name"],
            one["diagnosis"]["component"]["side"],
        )
        for one in report["verdicts"]
    ]


@pytest.mark.parametrize("name", ["{}_to_{}.txt", "ib_write_bw_{}_{}.log", "{}-{}.out", "{}/{}.txt"])
@pytest.mark.parametrize("side", ["tx", "rx", "both"])
def test_the_slow_nic_of_a_folder_is_named(tmp_path, capsys, name, side):
    """Of files for each pair, the NIC that all slow pairs share is named, with the side; no host is to be drained."""
    for source, destination in itertools.permutations(HOSTS, 2):
        path = tmp_path / name.format(source, destination)
        path.parent.mkdir(exist_ok=True)
        path.write_text(output(rate(source, destination, "gpu-a03", side)))
    code, report = judged(capsys, tmp_path)
    assert (code, report["state"]) == (0, "fault")
    assert component(report) == [("nic", "gpu-a03", "" if side == "both" else side)]
    (verdict,) = report["verdicts"]
    assert (verdict["hosts"], verdict["drain"], verdict["diagnosis"]["alternatives"]) == (["gpu-a03"], [], [])


def drawn_case(seed):
    """Runs between drawn hosts, some of them missing, with one or two slow NICs, or none; and who is to blame."""
    draw = random.Random(seed)
    hosts = [f"n{number}" for number in range(draw.randint(5, 24))]
    slow = {host: (draw.choice(["tx", "rx", ""]), draw.uniform(0.3, 0.75)) for host in draw.sample(hosts, seed % 3)}
    scatter = draw.uniform(0.002, 0.02)

    def rate_bps(source, destination):
        shares = [share for host, (side, share) in slow.items()
                  if (host == source and side != "rx") or (host == destination and side != "tx")]  # fmt: skip
        return 190e9 * min([1.0, *shares]) * draw.gauss(1.0, scatter)

    pairs = [pair for pair in itertools.permutations(hosts, 2) if draw.random() < 0.85]
    runs = [BenchmarkRun(f"{one}_{other}", "perftest", "write bw", (BenchmarkRow(65536, rate_bps(one, other)),))
            for one, other in pairs]  # fmt: skip
    return runs, {(host, side) for host, (side, _) in slow.items()}


def test_drawn_faults_are_named_and_no_other():
    """Of drawn sets of pairs, in 95 % exactly the slow NICs and sides are named; in none is a healthy NIC named."""
    exact, drawn = 0, 60
    for seed in range(drawn):
        runs, slow = drawn_case(seed)
        found = [one.diagnosis.component for one in PairwiseRuns(runs).verdicts("job")]
        named = {(one.name, one.side) for one in found if one.kind == "nic"}
        assert {name for name, _ in named} <= {name for name, _ in slow}
        exact += named == slow and len(found) == len(slow)
    assert exact >= 0.95 * drawn


def test_a_server_writes_the_same_pair_from_its_end(tmp_path, capsys):
    """Addresses in the output tell the ends of files whose names do not, and which end sends, also in a server's."""
    for number, (source, destination) in enumerate(itertools.permutations(range(len(HOSTS)), 2)):
        gbit_s = rate(HOSTS[source], HOSTS[destination], HOSTS[4], "tx")
        (tmp_path / f"{number}.txt").write_text(output(gbit_s, source, destination, serves=number % 2 > 0))
    _, report = judged(capsys, tmp_path)
    assert component(report) == [("nic", "192.0.2.4", "tx")]


def test_a_read_goes_the_other_way(tmp_path, capsys):
    """A client reads from its server, so that the server's side sends."""
    for source, destination in itertools.permutations(HOSTS, 2):
        text = output(rate(source, destination, "gpu-a02", "tx"), test="RDMA_Read BW")
        (tmp_path / f"{destination}_{source}").write_text(text)
    assert component(judged(capsys, tmp_path)[1]) == [("nic", "gpu-a02", "tx")]


def test_a_nic_that_none_can_reach_is_named(tmp_path, capsys):
    """Where the benchmark says that it could not connect, the NIC that all such pairs share is named."""
    for source, destination in itertools.permutations(HOSTS, 2):
        bad = "gpu-a05" in (source, destination)
        text = UNREACHABLE if bad else output(190.0)
        (tmp_path / f"{source}_{destination}").write_text(text)
    _, report = judged(capsys, tmp_path)
    assert component(report) == [("nic", "gpu-a05", "")]
    assert report["verdicts"][0]["diagnosis"]["cause"] == "connection_lost"


def test_pairs_that_are_alike_blame_nobody(tmp_path, capsys):
    """Rates a few percent apart are no finding, and that all might be slow is said not to be known."""
    for source, destination in itertools.permutations(HOSTS, 2):
        (tmp_path / f"{source}_{destination}").write_text(output(rate(source, destination)))
    code, report = judged(capsys, tmp_path)
    assert (code, report["state"], report["verdicts"]) == (0, "measured", [])
    assert any("all pairs together" in what for what in report["cannot_tell"])


def test_slow_pairs_that_no_nic_accounts_for_blame_nobody(tmp_path, capsys):
    """Where all pairs from one half to the other are slow, that is said, and no NIC is named."""
    for source, destination in itertools.permutations(HOSTS, 2):
        slow = HOSTS.index(source) < 3 <= HOSTS.index(destination)
        (tmp_path / f"{source}_{destination}").write_text(output(90.0 if slow else rate(source, destination)))
    _, report = judged(capsys, tmp_path)
    assert component(report) == [("job", "job", "")]
    (verdict,) = report["verdicts"]
    assert (verdict["hosts"], verdict["diagnosis"]["confidence"]) == ([], 0.5)
    assert "9 of 30 pairs are slow, 47% as fast" in verdict["diagnosis"]["evidence"][0]
    assert report["contents"] == [
        "30 pairs of perftest write bw, 65536 B: slowest 90, median 190, fastest 190.5 Gbit/s"
    ]


def test_cabling_gives_the_link_that_slow_pairs_share(tmp_path, capsys):
    """With the cables between switches, the trunk that all slow pairs cross is named."""
    folder, dot = tmp_path / "runs", tmp_path / "fabric.dot"
    folder.mkdir()
    cables = [f'"{host}":"eth1" -- "leaf{at // 2}":"swp{at % 2 + 1}"' for at, host in enumerate(HOSTS)]
    cables += [f'"leaf{leaf}":"swp33" -- "spine0":"swp{leaf + 1}"' for leaf in range(3)]
    dot.write_text("\n".join(["graph fabric {", *cables, "}", ""]))
    for source, destination in itertools.permutations(HOSTS, 2):
        slow = HOSTS.index(source) < 2 <= HOSTS.index(destination)
        (folder / f"{source}_{destination}").write_text(output(90.0 if slow else rate(source, destination)))
    _, report = judged(capsys, "--cabling", dot, folder)
    assert component(report) == [("link", "leaf0/swp33 > spine0/swp1", "")]
    assert report["verdicts"][0]["diagnosis"]["alternatives"] == []
    assert main(["detect", "--cabling", str(tmp_path / "none.dot"), str(folder)]) == 2
    assert "none.dot" in capsys.readouterr().err


def test_runs_between_unknown_ends_are_not_compared(tmp_path, capsys):
    """Files that do not say between which NICs they are give their rates, and no verdict."""
    for number in range(6):
        (tmp_path / f"result{number}.txt").write_text(output(80.0 if number == 2 else 190.0))
    _, report = judged(capsys, tmp_path)
    assert report["verdicts"] == []
    assert any("between which NICs 6 benchmarks ran" in what for what in report["cannot_tell"])


def test_a_matrix_and_a_list_are_read_as_their_pairs(tmp_path, capsys):
    """A table of all pairs gives the same NIC as files do; without a unit it is refused with that reason."""
    rows = [[f"{rate(one, other, 'gpu-a06', 'rx'):.1f}" if one != other else "-" for other in HOSTS] for one in HOSTS]
    matrix = "".join(
        f"{' '.join(row)}\n" for row in [HOSTS, *([host, *row] for host, row in zip(HOSTS, rows, strict=True))]
    )
    pairs = "".join(
        f"{one},{other},{rate(one, other, 'gpu-a06', 'rx')}\n" for one, other in itertools.permutations(HOSTS, 2)
    )
    (tmp_path / "matrix.txt").write_text(f"ib_write_bw, Gb/s\n{matrix}")
    (tmp_path / "list.csv").write_text(f"source,destination,bw Gb/s\n{pairs}")
    for name in ("matrix.txt", "list.csv"):
        assert component(judged(capsys, tmp_path / name)[1]) == [("nic", "gpu-a06", "rx")]
    (tmp_path / "bare.txt").write_text(matrix)
    assert main(["detect", str(tmp_path / "bare.txt")]) == 2
    assert "states no unit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("gpu-a01_mlx5_0__gpu-a02_mlx5_1.txt", ("gpu-a01/mlx5_0", "gpu-a02/mlx5_1")),
        ("bw_node1_to_storage7.json.gz", ("node1", "storage7")),
        ("rack1-node3-rack2-node4", ("rack1-node3", "rack2-node4")),
        ("192.0.2.1_192.0.2.2.log", ("192.0.2.1", "192.0.2.2")),
        ("ib_write_bw_gbit.txt", None),
        ("result_2024-11-03.txt", None),
        ("mlx5_0_mlx5_1.txt", None),
        ("run__2.txt", None),
        ("spine-test__leaf-test.txt", ("spine-test", "leaf-test")),
        ("all_reduce_perf.txt", None),
    ],
)
def test_ends_are_taken_from_names_that_state_them(name, ends):
    """Two numbered hosts, with their NICs or not, are ends; dates, sizes and names of tests are none."""
    assert in_name(f"/results of 2024/{name}") == ends
