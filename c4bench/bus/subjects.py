"""What things are called on the bus. Each cluster has subjects, streams and buckets of its own.

c4.CLUSTER.job.JOB.window.HOST         a window without new names
c4.CLUSTER.job.JOB.names.HOST.begin    a window with all names of its host
c4.CLUSTER.job.JOB.names.HOST.change   a window with names that have changed
c4.CLUSTER.job.JOB.report              what ranks and probes report of the job
c4.CLUSTER.finding.JOB                 diagnoses
c4.CLUSTER.fabric.KIND.SOURCE          what detectors of all jobs share
"""

import re
from typing import NamedTuple

from c4bench.decoding import DecodingError, decoding
from c4bench.errors import UsageError

BEGIN, CHANGE = "begin", "change"
DEFAULT_CLUSTER = "c4"
_CLUSTER = re.compile(r"[A-Za-z0-9_-]{1,32}")
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_ESCAPED = re.compile(r"((?:=[0-9A-F]{2})+)")


def token(name: str) -> str:
    """The name as one token of a subject or key: other characters as `=` and two hexadecimal digits a byte."""
    return _OTHER.sub(lambda other: "".join(f"={byte:02X}" for byte in other[0].encode()), name)


def name_of(text: str) -> str:
    """The name that `token` has written. Raises DecodingError for what it never writes."""
    with decoding():
        name = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].replace("=", "")).decode(), text)
        written = token(name)
    if written != text:
        raise DecodingError(f"{text!r} stands for no name")
    return name


class SubjectPlace(NamedTuple):
    """What a subject of a job's telemetry is for: a window of `host`, `names` as in `Subjects.window`; "" a report."""

    host: str
    names: str = ""


def place(subject: str) -> SubjectPlace:
    """What a message of a job's telemetry is. Raises DecodingError for a subject that none has."""
    match subject.split(".")[4:]:
        case ["report"]:
            return SubjectPlace("")
        case ["window", host]:
            return SubjectPlace(name_of(host))
        case ["names", host, names] if names in {BEGIN, CHANGE}:
            return SubjectPlace(name_of(host), names)
    raise DecodingError("no subject of a job's telemetry")


class Subjects:
    """The subjects, streams and buckets of a cluster. Raises UsageError for what cannot be its name."""

    def __init__(self, cluster: str) -> None:
        if not _CLUSTER.fullmatch(cluster):
            raise UsageError(f"{cluster!r} is no name of a cluster: use up to 32 letters, digits, hyphens, underscores")
        self._root = f"c4.{cluster}"
        self.telemetry, self.names = f"c4-{cluster}-telemetry", f"c4-{cluster}-names"
        self.findings, self.fabric = f"c4-{cluster}-findings", f"c4-{cluster}-fabric"
        self.jobs, self.leases = f"c4-{cluster}-jobs", f"c4-{cluster}-leases"
        self.state, self.leader = f"c4-{cluster}-state", f"c4-{cluster}-leader"
        self.every_job, self.every_finding = f"{self._root}.job.>", f"{self._root}.finding.*"
        self.every_name, self.every_fabric = f"{self._root}.job.*.names.>", f"{self._root}.fabric.>"
        self.every_traffic, self.every_report = f"{self._root}.fabric.traffic.*", f"{self._root}.job.*.report"

    def job(self, job: str) -> str:
        """Everything that the detector of a job reads."""
        return f"{self._root}.job.{token(job)}.>"

    def job_names(self, job: str) -> str:
        """The windows of a job that have names."""
        return f"{self._root}.job.{token(job)}.names.>"

    def window(self, job: str, host: str, names: str = "") -> str:
        """A host's window; `names` is BEGIN or CHANGE for one that has names."""
        sort = f"names.{token(host)}.{names}" if names else f"window.{token(host)}"
        return f"{self._root}.job.{token(job)}.{sort}"

    def windows_of(self, host: str) -> list[str]:
        """All that a host's agent may publish."""
        names = [f"{self._root}.job.*.names.{token(host)}.{names}" for names in (BEGIN, CHANGE)]
        return [f"{self._root}.job.*.window.{token(host)}", *names]

    def report(self, job: str) -> str:
        """Reports of a job."""
        return f"{self._root}.job.{token(job)}.report"

    def finding(self, job: str) -> str:
        """Findings of a job."""
        return f"{self._root}.finding.{token(job)}"

    def shared(self, kind: str, source: str) -> str:
        """What `source` adds to what detectors of all jobs share."""
        return f"{self._root}.fabric.{kind}.{token(source)}"


def inbox(role: str) -> str:
    """What the subjects begin with on which answers come to a client of this role."""
    return f"_INBOX.{role}"


def bucket_stream(bucket: str) -> str:
    """The stream that a bucket of the key-value store is kept in."""
    return f"KV_{bucket}"


def bucket_key(bucket: str, key: str) -> str:
    """The subject that changes of a key are published on."""
    return f"$KV.{bucket}.{key}"
