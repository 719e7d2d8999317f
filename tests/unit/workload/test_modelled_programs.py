"""Programs that train and serve named models: their parameters, and what they draw."""

import itertools
import statistics

import pytest

from c4bench.errors import UsageError
from c4bench.workload import programs
from c4bench.workload.serving import Serving, drawn


@pytest.mark.parametrize(
    ("program", "parameters", "said"),
    [
        ("pretraining", {"model": "gpt-5", "steps": 1}, "there is no model 'gpt-5'; use gpt-22b"),
        ("pretraining", {"model": "gpt-22b", "steps": 0}, "steps, micro_batches"),
        ("pretraining", {"model": "gpt-22b", "steps": 1, "parallelism": {"tensor": 5}}, "64 heads cannot be shared"),
        ("pretraining", {"model": "gpt-22b", "steps": 1, "parallelism": {"rows": 5}}, "unknown field `rows`"),
        ("serving", {"model": "llama-7b", "requests": 3, "arrivals_s": 0}, "must be positive"),
        ("serving", {"model": "llama-7b", "requests": 3}, "arrivals_s"),
    ],
)
def test_a_job_that_cannot_be_is_refused_before_it_starts(program, parameters, said):
    """Whoever asks for an unknown model, or for ranks that do not divide it, reads why."""
    with pytest.raises(UsageError, match=said):
        programs.check(program, parameters)


def test_requests_are_a_poisson_process_that_every_rank_draws_alike():
    """Gaps between arrivals have the mean and the deviation of an exponential; lengths are around their means."""
    parameters = Serving("llama-7b", requests=40000, arrivals_s=20.0, prompt=1000, answer=64)
    requests = drawn(parameters, 7)
    assert requests == drawn(parameters, 7) != drawn(parameters, 8)
    gaps = [later.arrival_s - earlier.arrival_s for earlier, later in itertools.pairwise(requests)]
    assert statistics.mean(gaps) == pytest.approx(0.05, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.05, rel=0.05)
    assert statistics.mean(request.prompt for request in requests) == pytest.approx(1000, rel=0.01)
    assert {request.answer for request in requests} == set(range(32, 97))
