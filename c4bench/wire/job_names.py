"""Names of jobs: what can be one, and which the master gives to its own."""

from c4bench.errors import UsageError
from c4bench.foreign_text import one_line

# With a suffix it is a file's name, which file systems limit to 255 bytes.
JOB_ID_AT_MOST_BYTES = 128
# Prefixes of the names of the master's own jobs, which check NICs.
CHECK, PROBE = "check~", "probe~"


def check_job_id(job: str) -> None:
    """Raises UsageError for what cannot be the id of a job: it becomes the name of files and folders."""
    plain = job.isprintable() and not job.startswith(".") and "/" not in job
    # What prints has no halves of surrogate pairs, and so can be encoded.
    if not plain or not 0 < len(job.encode()) <= JOB_ID_AT_MOST_BYTES:
        raise UsageError(
            f"{one_line(job, JOB_ID_AT_MOST_BYTES)!r} is no id of a job: give printable characters of up to "
            f"{JOB_ID_AT_MOST_BYTES} bytes in UTF-8, without '/' and not beginning with a dot"
        )


def is_check(job: str) -> bool:
    """Whether a job is one of the master's own short transfers that check NICs."""
    return job.startswith((CHECK, PROBE))
