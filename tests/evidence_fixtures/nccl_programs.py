"""What the ranks of the NCCL fixtures run, and the cases: which rank departs from its program, and how.

At step `BAD_STEP` the culprits of a case do what its `fault` says. Everybody waits on the device at the end of a step.
"""

import os
import signal
import time
from datetime import timedelta
from typing import NamedTuple

STEPS = 5
BAD_STEP = 3
FOREVER_S = 3600
CYCLES = 1 << 43  # of a kernel that spins for more than an hour
SHORT_CYCLES = 100_000_000  # of one that spins for some 50 ms
SMALL = 64
LARGE = 8 << 20  # elements; more than NCCL takes from a sender before the receiver is there
LOGGED = 4096  # elements that are above the size from which NCCL Inspector logs a call


class Case(NamedTuple):
    """A job: its program, the ranks that depart from it, and what they do; `wrong` is the cause to be named."""

    program: str = "steps"
    fault: str = ""
    culprits: tuple[int, ...] = ()
    wrong: str = ""
    ranks: int = 4
    eager: bool = True  # communicators are opened by init_process_group, not by the first call
    timing: bool = True  # TORCH_NCCL_ENABLE_TIMING: without it no call is ever `started`
    size: int = SMALL
    timeout_s: int = 600
    dump: str = "thread"  # by a thread of the rank; by PyTorch's `watchdog`; by PyTorch when told by a `pipe`
    ras_after_s: tuple[float, ...] = (0, 3)
    monitor: bool = False
    settle_s: float = 6.0
    limit_s: float = 60.0
    environment: tuple[tuple[str, str], ...] = ()


_STAY = (("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"),)  # a rank lives on when another has died
_LOG = (
    ("NCCL_INSPECTOR_ENABLE", "1"),
    ("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "500000"),
    ("NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING", "0"),
)
_RAS_LONG = (0.0, 30.0, 75.0)  # NCCL holds a process for dead after 60 s

# Those that take long come first, but for one that is only made if there is time.
CASES = {
    "healthy": Case(),
    "killed_ras": Case("steps", "kill", (2,), "no_file", ras_after_s=_RAS_LONG, monitor=True, settle_s=4,
                       environment=_STAY),
    "timed_out": Case("steps", "sleep", (3,), "not_entered", timeout_s=10, dump="watchdog", limit_s=75),
    "killed": Case("steps", "kill", (2,), "no_file", dump="watchdog", limit_s=75),
    "hang": Case("steps", "sleep", (2,), "not_entered"),
    "hang_no_timing": Case("steps", "sleep", (1,), "not_entered", timing=False),
    "pipeline_receive": Case("pipeline", "sleep_receive", (2,), "not_entered", size=LARGE),
    "pipeline_send": Case("pipeline", "sleep_send", (1,), "not_entered", size=LARGE),
    "pipeline_receive_lazy": Case("pipeline", "sleep_receive", (2,), "not_entered", eager=False, size=LARGE,
                                  settle_s=40, limit_s=120),
    "exchange_missing": Case("exchange", "no_receive", (2,), "not_entered", size=LARGE),
    "exchange_absent": Case("exchange", "sleep", (2,), "not_entered", size=LARGE),
    "pipeline_receive_small": Case("pipeline", "sleep_receive", (2,), "not_entered"),
    "kernel": Case("steps", "kernel", (2,), "stuck_inside"),
    "coalesced": Case("coalesced", "sleep", (1,), "not_entered"),
    "groups": Case("groups", "sleep", (2,), "not_entered"),
    "barrier": Case("barrier", "sleep", (3,), "not_entered"),
    "hang_first": Case("steps_first", "sleep", (0,), "not_entered"),
    "hang_first_lazy": Case("steps_first", "sleep", (0,), "not_entered", eager=False, settle_s=12),
    "stopped": Case("steps", "stop", (1,), "no_file"),
    "skip_last": Case("steps", "skip_last", (1,), "not_entered"),
    "type": Case("steps", "type", (0,), "collective_type_mismatch"),
    "size": Case("steps", "size", (2,), "size_or_syntax_mismatch"),
    "size_larger": Case("steps", "size_larger", (2,), "size_or_syntax_mismatch"),
    "dtype": Case("steps", "dtype", (3,), "collective_dtype_mismatch"),
    "skip_between": Case("steps", "skip_between", (1,), "collective_type_mismatch"),
    "order": Case("order", "order", (1,), "collective_order_mismatch"),
    "barrier_instead": Case("steps", "barrier", (2,), "size_or_syntax_mismatch"),
    "pipe": Case("steps", "sleep", (2,), "not_entered", dump="pipe"),
    "inspector": Case("logged", "slow", (2,), "compute_slow", size=LOGGED, environment=_LOG),
    "inspector_verbose": Case("logged", "slow", (1,), "compute_slow", size=LOGGED,
                              environment=(*_LOG, ("NCCL_INSPECTOR_DUMP_VERBOSE", "1"))),
    "groups_lazy": Case("groups", "sleep", (2,), "not_entered", eager=False, settle_s=12),
    "all_to_all": Case("all_to_all", "sleep", (2,), "not_entered"),
    "kineto": Case("profiled", "slow", (2,), "compute_slow", size=LOGGED, settle_s=25),
    "runs_ahead": Case("runs_ahead", "sleep", (2,), "not_entered"),
    "exchange_healthy": Case("exchange"),
    "stopped_ras": Case("steps", "stop", (1,), "no_file", ras_after_s=_RAS_LONG, monitor=True, settle_s=4),
}  # fmt: skip


class Rank:
    """One rank of a case: its program, and the marks from which the case's supervisor sees how far it has come."""

    def __init__(self, case, rank, marks, out, backend):
        import torch
        import torch.distributed as dist

        self.case, self.rank, self.marks, self.out = case, rank, marks, out
        self.torch, self.dist = torch, dist
        self.device = torch.device("cuda:0" if backend == "nccl" else "cpu")
        if backend == "nccl":
            torch.cuda.set_device(self.device)
        bound = {"device_id": self.device} if backend == "nccl" and case.eager else {}
        dist.init_process_group(
            backend, rank=rank, world_size=case.ranks, timeout=timedelta(seconds=case.timeout_s), **bound
        )

    def run(self):
        """Run the program to its end."""
        self.mark("up")
        getattr(self, self.case.program)()
        self.mark("done")

    def mark(self, what):
        """Tell the supervisor."""
        (self.marks / f"{what}_{self.rank}").touch()

    def ones(self, count=None, **kind):
        """A tensor of the case's size, or of `count` elements."""
        return self.torch.ones(count or self.case.size, device=self.device, **kind)

    def bad(self, step):
        """Whether this rank departs from its program now."""
        return self.rank in self.case.culprits and step == BAD_STEP

    def end_step(self, step):
        """Wait for the device without using a core."""
        if self.device.type == "cuda":
            event = self.torch.cuda.Event(blocking=True)
            event.record()
            event.synchronize()
        self.mark(f"step_{step}")

    def depart(self, step):
        """The fault of a culprit that comes before a step."""
        if not self.bad(step):
            return
        fault = self.case.fault
        if fault == "sleep":
            time.sleep(FOREVER_S)
        elif fault in {"stop", "kill"}:
            os.kill(os.getpid(), signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
        elif fault == "kernel":
            self.torch.cuda._sleep(CYCLES)
        elif fault == "barrier":
            self.dist.barrier()
        elif fault == "type":
            self.dist.broadcast(self.ones(), 0)
        elif fault == "size":
            self.dist.all_reduce(self.ones(16))
        elif fault == "size_larger":
            self.dist.all_reduce(self.ones(LARGE))
        elif fault == "dtype":
            self.dist.all_reduce(self.ones(dtype=self.torch.float64))

    def calls(self, step, fault=""):
        """The collectives of a step."""
        one = self.ones()
        self.dist.all_reduce(one)
        if fault != "skip_between":
            self.dist.all_gather([self.torch.empty_like(one) for _ in range(self.case.ranks)], one)
        if not (self.case.fault == "skip_last" and self.rank in self.case.culprits and step == STEPS - 1):
            self.dist.all_reduce(self.ones(32))

    def steps(self):
        """Steps of three collectives."""
        for step in range(STEPS):
            self.depart(step)
            self.calls(step, self.case.fault if self.bad(step) else "")
            self.end_step(step)

    def steps_first(self):
        """The culprit never calls anything."""
        self.depart(BAD_STEP)
        self.calls(0)
        self.end_step(0)

    def runs_ahead(self):
        """The same without waiting for the device, so that ranks call what they cannot run yet."""
        for step in range(STEPS):
            if step == BAD_STEP:
                self.end_step(step)
            self.depart(step)
            self.calls(step)
        self.end_step(STEPS)

    def halves(self):
        """The rank's row and column in a square of ranks."""
        rows = [self.dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
        columns = [self.dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        return rows[self.rank // 2], columns[self.rank % 2]

    def groups(self):
        """All-reduces of rows, columns and everybody."""
        row, column = self.halves()
        for step in range(STEPS):
            self.depart(step)
            for group in (row, column, self.dist.group.WORLD):
                self.dist.all_reduce(self.ones(), group=group)
            self.end_step(step)

    def order(self):
        """Rows and everybody, which the culprit calls in the other order."""
        row, _ = self.halves()
        for step in range(STEPS):
            groups = (self.dist.group.WORLD, row) if self.bad(step) else (row, self.dist.group.WORLD)
            for group in groups:
                self.dist.all_reduce(self.ones(), group=group)
            self.end_step(step)

    def barrier(self):
        """A barrier after each step."""
        for step in range(STEPS):
            self.dist.all_reduce(self.ones())
            self.depart(step)
            self.dist.barrier()
            self.end_step(step)

    def all_to_all(self):
        """Everybody sends to everybody."""
        for step in range(STEPS):
            self.depart(step)
            mine = self.ones()
            self.dist.all_to_all_single(self.torch.empty_like(mine), mine)
            self.dist.all_reduce(mine)
            self.end_step(step)

    def coalesced(self):
        """Two all-gathers in one call, then two all-reduces in one call."""
        for step in range(STEPS):
            self.depart(step)
            mine = [self.ones(), self.ones(32)]
            whole = [self.torch.empty(one.numel() * self.case.ranks, device=self.device) for one in mine]
            with self.dist._coalescing_manager(device=self.device, async_ops=True) as gathers:
                for into, one in zip(whole, mine, strict=True):
                    self.dist.all_gather_into_tensor(into, one)
            gathers.wait()
            with self.dist._coalescing_manager(device=self.device, async_ops=True) as sums:
                for one in mine:
                    self.dist.all_reduce(one)
            sums.wait()
            self.end_step(step)

    def pipeline(self):
        """Activations go to the next stage, gradients come back; a reduction ends the step."""
        data, last = self.ones(), self.case.ranks - 1
        for step in range(STEPS):
            for peer, way in ((self.rank - 1, 1), (self.rank + 1, -1)):
                source, target = peer, self.rank + way
                if 0 <= source <= last:
                    self.late(step, "sleep_receive")
                    self.dist.recv(data, source)
                if 0 <= target <= last:
                    self.late(step, "sleep_send")
                    self.dist.send(data, target)
            self.dist.all_reduce(self.ones(SMALL))
            self.end_step(step)

    def late(self, step, fault):
        """Never come to a send or receive."""
        if self.bad(step) and self.case.fault == fault:
            time.sleep(FOREVER_S)

    def exchange(self):
        """Everybody sends to the next and receives from the one before, in one batch."""
        data, into, count = self.ones(), self.ones(), self.case.ranks
        for step in range(STEPS):
            self.depart(step)
            operations = [self.dist.P2POp(self.dist.isend, data, (self.rank + 1) % count)]
            if not (self.bad(step) and self.case.fault == "no_receive"):
                operations.append(self.dist.P2POp(self.dist.irecv, into, (self.rank - 1) % count))
            for work in self.dist.batch_isend_irecv(operations):
                work.wait()
            self.dist.all_reduce(self.ones(SMALL))
            self.end_step(step)

    def logged(self):
        """Many steps, in each of which the culprit computes for longer."""
        for step in range(40):
            if self.rank in self.case.culprits and self.device.type == "cuda":
                self.torch.cuda._sleep(SHORT_CYCLES)
            self.dist.all_reduce(self.ones())
            self.dist.all_gather_into_tensor(self.ones(self.case.size * self.case.ranks), self.ones())
            self.end_step(step)
        self.dist.destroy_process_group()

    def profiled(self):
        """The same under PyTorch's profiler."""
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA][: self.device.type == "cuda"]]
        self.dist.all_reduce(self.ones())
        self.end_step(0)
        with profile(activities=activities) as trace:
            self.logged()
        trace.export_chrome_trace(str(self.out / f"kineto_{self.rank}.json"))
