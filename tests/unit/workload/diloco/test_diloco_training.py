"""The order of inner and outer steps, with an exchange that answers as told."""

import numpy as np
import pytest

from c4bench.workload.diloco.plan import cut, schedule
from c4bench.workload.diloco.training import Outcome, OuterState, Replica, train
from c4bench.workload.models.optimisers import AdamW
from c4bench.workload.models.protocol import Layer

FRAGMENTS = cut([Layer("embedding", 0, 1), Layer("block0", 1, 2), Layer("block1", 2, 3)], 2, "strided")


class Told:
    """Answers turns with the outcomes given, else with an outer step; the outer parameters are always 8."""

    def __init__(self, outcomes):
        self.outcomes, self.sent, self.numbers = outcomes, [], []

    def send(self, turn, gradient):
        self.numbers.append(turn.number)
        self.sent.append((turn.fragment, float(gradient[0])))

    def receive(self):
        number = self.numbers[-1]
        return self.outcomes.get(number, Outcome(True, (), number + 1))


def run(steps, overlap, outcomes=None, mixing=0.5):
    """Steps that add 1 to every parameter; what was sent, and the parameters after each step."""
    outer = OuterState(np.full(3, 8, np.float32), FRAGMENTS, 0.4, 0.9)
    replica = Replica(np.zeros(3, np.float32), FRAGMENTS, AdamW(3, 0.1), outer, mixing)
    exchange = Told(outcomes or {})
    after = {}

    def inner_step(_):
        replica.parameters += 1
        return 0.0

    for step in train(replica, inner_step, schedule(6, 3, overlap), exchange, range(steps)):
        after[step.number] = replica.parameters.tolist()
    return exchange, after


@pytest.mark.parametrize("overlap", [0, 1])
def test_what_is_sent_is_the_state_at_the_turn_and_what_is_received_is_mixed_later(overlap):
    """Fragment 0 is due at step 2: sent tau earlier, mixed then; tau's steps in between stay in the mix."""
    exchange, after = run(6, overlap)
    assert exchange.sent[0] == (0, 8 - (2 - overlap))
    assert [fragment for fragment, _ in exchange.sent] == [0, 1, 2]
    # The embedding is parameter 0, block 0 parameter 1.
    assert after[1] == [1, 1, 1]
    assert after[2] == [2, (2 + 8) / 2, 2]
    assert after[4] == [4, 7, (4 + 8) / 2]
    assert after[6][0] == (6 + 8) / 2


def test_a_failed_turn_changes_nothing_and_is_sent_again():
    """Without an outer step the site keeps its parameters; its next outer gradient has the steps of both periods."""
    exchange, after = run(12, 1, {0: Outcome(False, (), 1)})
    assert after[2] == [2, 2, 2]
    assert exchange.sent[0] == (0, 7)
    assert exchange.sent[3] == (0, 1)


def test_fragments_of_another_site_replace_the_own_ones():
    """What was brought up to date is taken over whole, whatever alpha is."""
    _, after = run(2, 1, {0: Outcome(False, (0, 2), 1)}, mixing=0.75)
    assert after[2] == [8, 8, 2]


def test_a_late_site_leaves_out_the_steps_to_its_next_turn():
    """Too late for turn 0, it goes on with turn 4: from step 2 to that turn's, at which it sends."""
    exchange, after = run(18, 1, {0: Outcome(False, (), 4)})
    assert exchange.numbers[:2] == [0, 4]
    assert sorted(after)[:4] == [1, 2, 9, 10]
