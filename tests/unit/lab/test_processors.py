"""Labs that run side by side each have a processor."""

import os
from contextlib import ExitStack

from c4bench.lab.machine.run import _own_processor


def test_each_lab_has_a_processor_and_more_labs_have_all():
    """As many labs as there are processors have different ones; one more may use all."""
    allowed = os.sched_getaffinity(0)
    with ExitStack() as labs:
        taken = [labs.enter_context(_own_processor()) for _ in allowed]
        single = [frozenset(processors) for processors in taken if processors != allowed]
        assert len(set(single)) == len(single)
        with _own_processor() as more:
            assert more == allowed
