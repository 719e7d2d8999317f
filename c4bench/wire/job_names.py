"""Names of jobs: what can be one, and which the master gives to its own."""

from c4bench.errors import UsageError

# With a suffix it is a file's name, which file systems limit to 255 bytes.
JOB_ID_AT_MOST = 128
# Prefixes of the names of the master's own jobs, which check NICs.
CHECK, PROBE = "check~", "probe~"


def check_job_id(job: str) -> None:
    """Raises UsageError for what cannot be the id of a job: it becomes the name of files and folders."""
    if not 0 < len(job) <= JOB_ID_AT_MOST or job.startswith(".") or "/" in job or not job.isprintable():
        raise UsageError(
            f"{job[:JOB_ID_AT_MOST]!r} is no id of a job: give up to {JOB_ID_AT_MOST} printable characters, "
            "without '/' and not beginning with a dot"
        )


def is_check(job: str) -> bool:
    """Whether a job is one of the master's own short transfers that check NICs."""
    return job.startswith((CHECK, PROBE))
