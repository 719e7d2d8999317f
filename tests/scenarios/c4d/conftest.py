"""What scenarios of C4D ask of the fabric."""

import pytest

from c4bench.c4d.offline import detect
from c4bench.model.recording import Evaluated


@pytest.fixture
def replayed(cluster):
    """Whether a job's recording, judged again, says what was said of the job live, times and all."""

    def check(job):
        recording = cluster.recording(job)
        until_s = max(record.at_s for record in recording if isinstance(record, Evaluated))
        return detect(recording) == [found for found in cluster.diagnoses(job) if found.named_s <= until_s]

    return check
