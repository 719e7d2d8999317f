"""Commands of schedulers that take a host out of service or start a job again, for a person to run or for a hook."""

import re
import shlex
from typing import NamedTuple

import msgspec

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,252}[A-Za-z0-9])?")
_TORCHRUN_JOB = re.compile(r"(?:.+-)?torchrun-(.+)")
_SLURM_JOB = re.compile(r"slurm-(\d+)(?:-.*)?")


class Step(NamedTuple):
    """A command to run; one that is `awaited` is run again until it prints something."""

    words: tuple[str, ...]
    awaited: bool = False


def is_one_host(name: str) -> bool:
    """Whether a scheduler takes a name for one host: Slurm also knows `ALL`, lists and ranges."""
    return bool(_HOST.fullmatch(name)) and name.upper() != "ALL"


def slurm_drain(host: str, reason: str) -> Step:
    """Lets jobs on a host end, and starts none there."""
    return Step(("scontrol", "update", f"nodename={host}", "state=drain", f"reason={reason}"))


def slurm_requeue(job: str) -> tuple[Step, ...]:
    """Start a job again that is called as `attach` calls one of Slurm; nothing for any other.

    At once: by itself Slurm waits for two minutes, so that nodes clean up before the job comes again.
    """
    found = _SLURM_JOB.fullmatch(job)
    if not found:
        return ()
    number = found[1]
    ended = Step(("squeue", "--noheader", f"--jobs={number}", "--states=PENDING", "--format=%i"), awaited=True)
    at_once = Step(("scontrol", "update", f"jobid={number}", "starttime=now"))
    return Step(("scontrol", "requeue", number)), ended, at_once


def kubernetes_suspect(host: str, cause: str, reason: str) -> Step:
    """Gives a node a condition."""
    why = "".join(word.capitalize() for word in cause.split("_"))
    condition = {"type": "C4benchSuspect", "status": "True", "reason": why, "message": reason}
    patch = msgspec.json.encode({"status": {"conditions": [condition]}}).decode()
    return Step(("kubectl", "patch", "node", host, "--subresource=status", "-p", patch))


def kubernetes_cordon(host: str) -> Step:
    """Has no more pods started on a node."""
    return Step(("kubectl", "cordon", host))


def kubernetes_delete(job: str, host: str) -> Step:
    """Deletes the pods of a Job on a node, which its controller then starts elsewhere."""
    chosen = f"--selector=batch.kubernetes.io/job-name={job}", f"--field-selector=spec.nodeName={host}"
    return Step(("kubectl", "delete", "pod", *chosen, "--wait=false"))


def torchrun_end(job: str, rank: int, host: str) -> Step:
    """Kills a rank's process on its host, by `ssh`, so that torchrun's elastic agent starts the group again.

    The job is called as `attach` calls it: by `C4BENCH_JOB`, or by torchrun's run id. The command prints the numbers of
    the processes, and fails where there is none.
    """
    found = _TORCHRUN_JOB.fullmatch(job)
    whose = shlex.quote(f"TORCHELASTIC_RUN_ID={found[1]}" if found else f"C4BENCH_JOB={job}")
    # /dev/null, so that the second search has a file where the first has found none.
    members = f"$(grep -lzxF {whose} /proc/[0-9]*/environ 2>/dev/null)"
    pids = f"$(grep -lzxF RANK={rank} /dev/null {members} | cut -d/ -f3)"
    absent = shlex.quote(f"no process of rank {rank} of {job} here")
    script = f'pids={pids}; [ -n "$pids" ] || {{ echo {absent} >&2; exit 1; }}; kill -KILL $pids && echo $pids'
    return Step(("ssh", "-o", "BatchMode=yes", host, script))
