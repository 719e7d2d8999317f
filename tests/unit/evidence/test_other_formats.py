"""Readers of RAS's text, of benchmarks and of Chakra traces, on files as their tools write them."""

import json
import os
import socket
import struct
import threading
import time
from pathlib import Path

import pytest

from c4bench.cli.main import main
from c4bench.evidence import ras_client
from c4bench.evidence.collect import collect, parse
from c4bench.evidence.judging.judge import judge
from c4bench.model.evidence import State

RAS_TEXT = (Path(__file__).parents[2] / "evidence_fixtures/ras.txt").read_bytes()
# NCCL's user guide, "RAS", an incomplete job.
RAS_DEAD = b"""NCCL version 2.29.2 compiled with CUDA 12.8

Job summary
===========

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5
"""


def test_the_text_of_ras_names_the_rank_that_lags():
    """Of a RAS text report, the rank that has launched fewer operations is named, with its host."""
    (verdict,) = judge(parse(RAS_TEXT, Path("ras.txt"))).verdicts
    assert verdict.culprits == (7,)
    assert verdict.hosts == ("172.16.64.210",)
    assert len(verdict.only_wait) == 31
    assert verdict.ras == "MISMATCH"


def test_the_text_of_ras_names_the_host_of_a_dead_process():
    """A dead process of which the text does not say the rank is named by its host."""
    (verdict,) = judge(parse(RAS_DEAD, Path("ras.txt"))).verdicts
    assert str(verdict.diagnosis.component) == "host 172.16.64.213"
    assert verdict.ras == "DEAD"


def test_ranks_of_ras_that_call_another_collective_are_named():
    """Ranks with as many calls as the others, but of other kinds, are a mismatch."""
    ranks = [{"rank": rank, "host": f"h{rank}", "pid": 9, "collective_counts": {"AllReduce": 5, "AllGather": 2}}
             for rank in range(4)]  # fmt: skip
    ranks[2]["collective_counts"] = {"AllReduce": 6, "AllGather": 1}
    report = {"nccl_version": "2.30.1", "communicators": [{"hash": "0x1", "size": 4, "ranks": ranks}]}
    (verdict,) = judge(parse(json.dumps(report).encode(), Path("ras.json"))).verdicts
    assert (verdict.diagnosis.cause, verdict.culprits) == ("collective_type_mismatch", (2,))


@pytest.mark.parametrize("json_known", [True, False])
def test_the_port_of_ras_is_asked(capsys, json_known):
    """A RAS port is asked for JSON, and for text where it knows no JSON; its answer is judged as a file is."""
    report = {"nccl_version": "2.30.1", "communicators": [{"hash": "1", "size": 2, "ranks": [
        {"rank": rank, "host": f"h{rank}", "pid": 1, "collective_counts": {"AllReduce": 9 - rank}} for rank in range(2)
    ]}]}  # fmt: skip
    answers = []

    def serve(server):
        for _ in range(1 if json_known else 2):
            connection, _ = server.accept()
            with connection:
                asked = connection.recv(100)
                if json_known:
                    answers.append(b"OK\n" + json.dumps(report).encode())
                else:
                    answers.append(b"ERROR: Unknown command\n" if b"json" in asked else RAS_TEXT)
                connection.sendall(answers[-1])

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        assert main(["detect", "--ras", f"127.0.0.1:{server.getsockname()[1]}"]) == 0
        thread.join()
    assert ("to blame: ranks 1 on h1" if json_known else "to blame: ranks 7") in capsys.readouterr().out


def test_a_port_where_nobody_listens_is_said(capsys):
    """A refused connection is one line, not a failure of the tool."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert main(["detect", "--ras", f"127.0.0.1:{port}"]) == 2
    assert "nobody listens" in capsys.readouterr().err
    assert ras_client.PORT == 28028


def test_results_of_nccl_tests_are_shown_without_their_environment(tmp_path, capsys):
    """Bandwidth and wrong elements of nccl-tests are shown; its environment goes nowhere."""
    report = {"version": "2.17", "args": ["./build/all_reduce_perf", "-b", "8"], "env": {"TOKEN": "hush-4711"},
              "nccl_version": "2.30.7", "config": {}, "devices": [], "out_of_bounds": "false",
              "results": [{"size": 1024, "out_of_place": {"time": 10.0, "bus_bw": 25.0, "nwrong": 3},
                           "in_place": {"time": 11.0, "bus_bw": "nan", "nwrong": 0}}]}  # fmt: skip
    path = tmp_path / "all_reduce.json"
    path.write_text(json.dumps(report))
    assert main(["detect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "WRONG RESULTS: nccl-tests 2.17 all_reduce: 3 elements at 1 KiB out of place" in out
    assert "1 KiB: bus bandwidth 25.00 GB/s out of place, 3 WRONG elements out of place" in out
    assert main(["detect", "--json", str(path)]) == 0
    assert "hush" not in out + capsys.readouterr().out


def test_rows_of_rccl_tests_are_read_in_any_json_and_csv():
    """Objects one a line, in a list with commas or without, indented, or a CSV file give the same run; or it is cut."""
    figures = {"time": 35.5, "algBw": 29.5, "busBw": 51.5}
    places = [(size, place) for size in (1024, 4096) for place in (0, 1)]
    rows = [{"name": "AllReduce", "ranks": 8, "size": size, "inPlace": place, **figures, "wrong": str(place)}
            for size, place in places]  # fmt: skip
    lines = [json.dumps(row) for row in rows]
    table = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    forms = ["\n".join(lines), "\n".join(["[", *lines, "]"]), json.dumps(rows), json.dumps(rows, indent=1)]
    table[0] = f"numCycle,{table[0]}".replace("ranks", "nodes,ranks")
    table[1:] = [f"0,{row}".replace("AllReduce", "AllReduce,1") for row in table[1:]]
    runs = [parse(text.encode(), Path("out")).benchmarks for text in [*forms, "\n".join(table)]]
    assert all(run == runs[0] for run in runs)
    assert [(row.size_bytes, row.in_place, row.wrong) for row in runs[0][0].rows] == [
        (1024, False, 0), (1024, True, 1), (4096, False, 0), (4096, True, 1)
    ]  # fmt: skip
    (cut,) = parse(forms[0][:-9].encode(), Path("out")).benchmarks
    assert (len(cut.rows), cut.cut) == (3, "its line 4 is cut")


def test_the_rate_of_perftest_comes_from_its_messages():
    """Perftest's bandwidth has no unit in its file, so that the message rate gives it."""
    report = {
        "test_info": {"test": "RDMA_Write BW"},
        "results": {"MsgSize": 65536, "BW_average": 97.5, "MsgRate": 0.1859},
    }
    (run,) = parse(json.dumps(report).encode(), Path("bw.json")).benchmarks
    assert run.rows[0].bandwidth_bps == pytest.approx(97.47e9, rel=1e-3)


def _varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number, value):
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _node(number, kind, start, duration):
    attributes = [
        _field(1, b"comm_type") + _field(9, kind),
        _field(1, b"comm_size") + _field(9, 4096),
        _field(1, b"pg_name") + _field(29, b"3"),
        _field(1, b"ratio") + b"\x19" + struct.pack("<d", 0.5),
    ]
    body = _field(1, number) + _field(2, b"nccl") + _field(3, 7) + _field(6, start) + _field(7, duration)
    return body + b"".join(_field(10, one) for one in attributes)


def test_collectives_of_a_chakra_trace_are_read():
    """The communication nodes of a Chakra trace become calls in the order of their starts; others are left out."""
    compute = _field(1, 9) + _field(2, b"gemm") + _field(3, 4)
    messages = [_field(1, b"0.0.4"), _node(2, 0, 900, 30), compute, _node(1, 2, 100, 20)]
    data = b"".join(_varint(len(one)) + one for one in messages)
    reading = parse(data, Path("trace.5.et"))
    (member,) = reading.members
    assert (member.rank, member.comm) == (5, "3")
    assert [(call.seq, call.kind, call.size_bytes, call.duration_s) for call in member.calls] == [
        (0, "all_gather", 4096, pytest.approx(20e-6)),
        (1, "all_reduce", 4096, pytest.approx(30e-6)),
    ]


def _inspected(folder, took_us):
    """Logs of the Inspector: by rank, how long each operation took."""
    for rank, times in enumerate(took_us):
        lines = [{"header": {"id": "0xa", "rank": rank, "n_ranks": len(took_us)},
                  "metadata": {"inspector_output_format_version": "v4.0", "hostname": f"n{rank}", "pid": 5},
                  "coll_perf": {"coll": "AllReduce", "coll_sn": seq, "coll_msg_size_bytes": 8, "coll_exec_time_us": us}}
                 for seq, us in enumerate(times)]  # fmt: skip
        (folder / f"n{rank}-pid5.log").write_text("\n".join(map(json.dumps, lines)))
    return judge(collect([folder]))


def test_few_operations_name_a_late_rank_only_if_it_is_late_in_all(tmp_path):
    """Of two operations, a rank that is last in both is perhaps slow; one that is late in one is no all-clear."""
    (verdict,) = _inspected(tmp_path, [(9000, 9100), (900, 950), (9050, 9000), (9100, 9150)]).verdicts
    assert (verdict.culprits, verdict.sure) == ((1,), False)
    once = _inspected(tmp_path, [(9000, 9100), (900, 8900), (9050, 9000), (9100, 9150)])
    assert (once.verdicts, once.state) == ((), State.UNTOLD)
    assert "came late to 1 of 2" in once.contents[1]
    even = _inspected(tmp_path, [(9000, 9100), (8900, 8950), (9050, 9000), (9100, 9150)])
    assert (even.verdicts, even.state) == ((), State.NO_STRAGGLER)


def test_dumps_are_judged_as_they_appear(torch_dumps, tmp_path, capsys):
    """A folder is followed: what is wrong is said once the dumps are there, and once only."""
    folder = torch_dumps / "torch-2.14.1" / "hang_4"

    def appear():
        time.sleep(0.6)
        for rank in range(4):
            (tmp_path / f"rank_{rank}").write_bytes((folder / f"rank_{rank}").read_bytes())

    thread = threading.Thread(target=appear)
    thread.start()
    assert main(["detect", "--follow", "4", str(tmp_path)]) == 0
    thread.join()
    assert capsys.readouterr().out.count("to blame: ranks 2") == 1


def test_the_page_shows_who_waits_for_whom(torch_dumps, tmp_path):
    """The page has a row for each operation in which ranks wait, and prints names from files as text."""
    folder = torch_dumps / "torch-2.14.1" / "groups_16"
    files = [str(path) for path in folder.glob("rank_*") if not path.suffix]
    page = tmp_path / "page.html"
    assert main(["detect", "--html", str(page), *files]) == 0
    text = page.read_text()
    assert "<td>4, 5, 7</td><td>6</td>" in text.replace("4-5, 7", "4, 5, 7")
    assert "rank job:6" in text
    assert "<script" not in text


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_dumps_that_appear_in_pipes_are_judged(torch_dumps, tmp_path, capsys, form):
    """What is written to named pipes is judged like files, also more than a pipe holds; a later dump counts."""
    folder = torch_dumps / "torch-2.14.1" / "hang_4"
    suffix = ".json" if form == "json" else ""
    healthy = torch_dumps / "torch-2.14.1" / "healthy"
    for rank in range(4):
        os.mkfifo(tmp_path / f"rank_{rank}{suffix}")

    def appear():
        for source in (healthy, folder):
            time.sleep(0.7)
            for rank in range(4):
                name = f"rank_{rank}{suffix}"
                (tmp_path / name).write_bytes((source / name).read_bytes() + b" " * (form == "json") * 200_000)
            time.sleep(1.5)

    thread = threading.Thread(target=appear)
    thread.start()
    assert main(["detect", "--follow", "7", str(tmp_path)]) == 0
    thread.join()
    assert capsys.readouterr().out.count("to blame: ranks 2") == 1


def test_a_pipe_is_read_only_if_it_is_followed(tmp_path, capsys):
    """Without --follow, a pipe is named as such, and nothing waits for somebody to write to it."""
    path = tmp_path / "rank_0"
    os.mkfifo(path)
    assert main(["detect", str(path)]) == 2
    assert f"{path}: it is a pipe; give --follow" in capsys.readouterr().err
