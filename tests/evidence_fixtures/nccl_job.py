"""One case of the NCCL fixtures: its ranks, each a process, and what is collected once they are done or stuck."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import sys
import threading
import time

from make import analyse, forked
from nccl_programs import CASES, FOREVER_S, Rank

HOST = "127.0.0.1"
COLLECT_S = 25  # what is left for collecting when the time of all cases is up


def say(text):
    """A line of progress."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


class Job:
    """A case that runs: its ranks, and what is collected of them."""

    def __init__(self, name, number, top, options):
        self.name, self.case, self.options = name, CASES[name], options
        self.out, self.marks, self.logs = top / name, top.parent / "marks" / name, pathlib.Path(options.out) / "logs"
        self.port = options.port + 16 * number
        for folder in (self.out, self.marks):
            folder.mkdir(parents=True)
        self.pids, self.ended = {}, {}

    def run(self):
        """Run the case, and write what it leaves."""
        self.store()
        for rank in range(self.case.ranks):
            self.pids[rank] = forked(lambda rank=rank: self.rank(rank))
        began = time.monotonic()
        try:
            self.wait(min(began + self.case.limit_s, self.options.until - COLLECT_S))
            say(f"{self.name}: settled after {time.monotonic() - began:.0f} s")
            self.ask_ras()
            self.dump()
        finally:
            self.reap()
            self.write()
            for who in self.pids.keys() - self.ended.keys():
                os.kill(self.pids[who], signal.SIGKILL)
        (self.out / "torchfrtrace.json").write_text(json.dumps({"pickle": analyse(self.out, "pickle")}, indent=1))

    def store(self):
        """Start the store in which ranks meet, in a process that no fault touches, as torchrun does."""
        with socket.socket() as free:
            free.bind((HOST, 0))
            port = free.getsockname()[1]

        def serve():
            from torch.distributed import TCPStore

            self.server = TCPStore(HOST, port, is_master=True, wait_for_workers=False)
            time.sleep(FOREVER_S)

        self.pids["store"] = forked(serve)
        os.environ |= {"MASTER_ADDR": HOST, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}

    def rank(self, rank):
        """What a rank's process runs."""
        log = os.open(self.logs / f"{self.name}_{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        case = self.case
        os.environ |= {"NCCL_HOSTID": f"node{rank}", "NCCL_RAS_ADDR": f"{HOST}:{self.port + rank}"}
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(case.ranks), **dict(case.environment)}
        os.environ["TORCH_NCCL_ENABLE_TIMING"] = str(int(case.timing))
        where = str((self.marks if case.dump == "thread" else self.out) / "rank_")
        os.environ |= {"TORCH_FR_DUMP_TEMP_FILE": where, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": where}
        if case.dump == "pipe":
            pipe = str(self.marks / "pipe_")
            os.environ |= {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": pipe, "TORCH_FR_DEBUG_INFO_PIPE_FILE": pipe}
        if "NCCL_INSPECTOR_ENABLE" in os.environ:
            logs = self.out / "inspector"
            logs.mkdir(exist_ok=True)
            os.environ |= {"NCCL_PROFILER_PLUGIN": self.options.inspector, "NCCL_INSPECTOR_DUMP_DIR": str(logs)}
        if self.options.verbose:
            os.environ["NCCL_DEBUG"] = "INFO"
        threading.Thread(target=self.dump_when_told, args=(rank,), daemon=True).start()
        try:
            Rank(case, rank, self.marks, self.out, self.options.backend).run()
        except BaseException as error:
            (self.marks / f"error_{rank}").write_text(f"{type(error).__name__}: {error}"[:400])
            raise
        time.sleep(FOREVER_S)

    def dump_when_told(self, rank):
        """Write both forms of this process's flight recorder, wherever its program is then.

        Stacks are left out: finding the names of their frames takes seconds. What PyTorch itself dumps has them.
        """
        import torch

        while not (self.marks / "dump").exists():
            time.sleep(0.1)
        recorder, kind = torch._C._distributed_c10d, "nccl" if self.options.backend == "nccl" else "fr"
        try:
            for form, more in (("_json", {}), ("", {"includeStackTraces": False})):
                dump = getattr(recorder, f"_dump_{kind}_trace{form}")(**more)
                name = f"rank_{rank}{form.replace('_', '.')}"
                (self.out / name).write_bytes(dump if isinstance(dump, bytes) else dump.encode())
        finally:
            (self.marks / f"dumped_{rank}").touch()

    def reap(self):
        """Note which ranks have ended, and how."""
        for rank, pid in self.pids.items():
            if rank not in self.ended:
                with contextlib.suppress(ChildProcessError):
                    found, status = os.waitpid(pid, os.WNOHANG)
                    if found:
                        self.ended[rank] = os.waitstatus_to_exitcode(status)

    def wait(self, until):
        """Until everybody has finished or ended, or nobody has come on for a while."""
        watching = not self.case.monitor
        while time.monotonic() < until:
            time.sleep(0.2)
            self.reap()
            up = len(list(self.marks.glob("up_*")))
            if not watching and up == self.case.ranks:
                watching = True
                for form in ("text", "json"):
                    self.pids[f"monitor {form}"] = forked(lambda form=form: self.monitor(form))
            finished = {int(mark.name[5:]) for mark in self.marks.glob("done_*")}
            if len(finished | {rank for rank in self.ended if isinstance(rank, int)}) == self.case.ranks:
                time.sleep(1)
                return
            newest = max((mark.stat().st_mtime for mark in self.marks.iterdir()), default=time.time())
            if self.case.dump != "watchdog" and up == self.case.ranks and time.time() - newest > self.case.settle_s:
                return
        say(f"{self.name}: time is up; {up} ranks are up, {self.ended} have ended")

    def healthy(self):
        """The ranks that live and do not depart from their program."""
        return [rank for rank in range(self.case.ranks) if rank not in self.ended and rank not in self.case.culprits]

    def ask_ras(self):
        """Keep what the first healthy rank's RAS answers, at each of the case's times."""
        settled = time.monotonic()
        for after_s in self.case.ras_after_s if self.options.backend == "nccl" else ():
            self.reap()
            if not self.healthy() or settled + after_s > self.options.until - COLLECT_S:
                return
            time.sleep(max(0, settled + after_s - time.monotonic()))
            report = self.ask(self.healthy()[0], "SET FORMAT json\nVERBOSE STATUS\n")
            self.keep(f"ras_{after_s:.0f}s.json", report[max(0, report.find(b"{")) :])
            self.keep(f"ras_{after_s:.0f}s.txt", self.ask(self.healthy()[0], "VERBOSE STATUS\n"))
            if not after_s:
                self.keep("ras_0s_brief.txt", self.ask(self.healthy()[0], "STATUS\n"))

    def keep(self, name, answer):
        """Keep an answer of RAS. A rank without a communicator has none."""
        if answer:
            (self.out / name).write_bytes(answer)

    def dump(self):
        """Have the ranks dump, except those that cannot."""
        self.reap()
        alive = [rank for rank in range(self.case.ranks) if rank not in self.ended]
        if self.case.dump == "thread":
            (self.marks / "dump").touch()
            waited = [rank for rank in alive if not (self.case.fault == "stop" and rank in self.case.culprits)]
            until = time.monotonic() + 8
            while time.monotonic() < until and any(not (self.marks / f"dumped_{rank}").exists() for rank in waited):
                time.sleep(0.1)
        elif self.case.dump == "pipe":
            for rank in alive:
                pipe = os.open(self.marks / f"pipe_{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
                os.write(pipe, b"1\n")
                os.close(pipe)
            time.sleep(6)

    def ask(self, rank, command, timeout_s=12):
        """What a rank's RAS answers."""
        answer = b""
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port + rank), timeout_s) as there:
            there.sendall(command.encode())
            while piece := there.recv(1 << 16):
                answer += piece
        return answer

    def monitor(self, form):
        """Keep what RAS's monitor mode tells until this process is killed."""
        asked = "MONITOR all\n" if form == "text" else "SET FORMAT json\nMONITOR\n"
        with (
            socket.create_connection((HOST, self.port), 10) as there,
            (self.out / f"ras_monitor_{form}.txt").open("wb", buffering=0) as kept,
        ):
            there.sendall(asked.encode())
            there.settimeout(None)
            while piece := there.recv(1 << 16):
                kept.write(piece)

    def write(self):
        """The truth, and how each rank ended."""
        case = self.case
        truth = {"ranks": case.ranks, "culprits": case.culprits, "wrong": case.wrong, "fault": case.fault,
                 "program": case.program, "timeout_s": case.timeout_s, "eager": case.eager, "timing": case.timing,
                 "dump": case.dump}  # fmt: skip
        (self.out / "truth.json").write_text(json.dumps(truth))
        (self.out / "observed.json").write_text(json.dumps({rank: self.end_of(rank) for rank in range(case.ranks)}))

    def end_of(self, rank):
        """How a rank ended: finished, waiting or dead; how many steps it had done; its error."""
        error = self.marks / f"error_{rank}"
        finished = (self.marks / f"done_{rank}").exists()
        return {
            "state": "finished" if finished else f"exit {self.ended[rank]}" if rank in self.ended else "waiting",
            "steps": len(list(self.marks.glob(f"step_*_{rank}"))),
            "error": error.read_text() if error.exists() else "",
        }
