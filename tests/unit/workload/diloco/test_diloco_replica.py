"""A site's model: inner steps, outer gradients, outer steps and merging, by algorithm 2 of arXiv 2501.18512."""

import numpy as np
import pytest

from c4bench.errors import UnhealthyError
from c4bench.workload.diloco.plan import cut
from c4bench.workload.diloco.quantisation import CODECS
from c4bench.workload.diloco.training import OuterState, Replica, mean_of
from c4bench.workload.models.optimisers import AdamW
from c4bench.workload.models.protocol import Layer

LAYERS = [Layer("embedding", 0, 2), Layer("block0", 2, 5), Layer("block1", 5, 8)]
FRAGMENTS = cut(LAYERS, 2, "strided")
RATE, MOMENTUM = 0.4, 0.9


def replica(initial, mixing=0.5):
    initial = np.asarray(initial, np.float32)
    outer = OuterState(initial, FRAGMENTS, RATE, MOMENTUM)
    return Replica(initial, FRAGMENTS, AdamW(initial.size, 0.1), outer, mixing)


def test_outer_steps_follow_the_formula():
    """Two outer steps by Nesterov's momentum, computed by hand: v = 0.9 v + g, theta -= 0.4 (g + 0.9 v)."""
    own = replica(np.zeros(8))
    gradients = [np.float32(1), np.float32(-0.5)]
    theta = velocity = 0.0
    for gradient in gradients:
        own.outer.step(0, np.full(3, gradient), 0)
        velocity = MOMENTUM * velocity + gradient
        theta -= RATE * (gradient + MOMENTUM * velocity)
        np.testing.assert_allclose(own.outer.parameters(), [0, 0, theta, theta, theta, 0, 0, 0], rtol=1e-6)


def test_an_outer_gradient_points_from_the_site_to_the_outer_parameters():
    """A site that has come down from 1 to 0.25 sends 0.75, and a step by it goes down."""
    own = replica(np.ones(8))
    own.parameters[2:5] = 0.25
    assert own.outer_gradient(0).tolist() == [0.75] * 3
    assert own.outer_gradient(1).tolist() == [0] * 3
    own.outer.step(0, own.outer_gradient(0), 0)
    assert (own.outer.part(0) < 1).all()


@pytest.mark.parametrize(("mixing", "merged"), [(0.0, 4.0), (0.25, 3.5), (1.0, 2.0)])
def test_merging_keeps_the_share_that_alpha_says(mixing, merged):
    """Alpha 0 takes the outer parameters, 1 keeps the site's own; other fragments do not change."""
    own = replica(np.full(8, 4), mixing)
    own.parameters[:] = 2
    own.merge(0)
    assert own.parameters.tolist() == [2, 2, merged, merged, merged, 2, 2, 2]


def test_a_site_takes_over_the_state_of_another():
    """Parameters and velocity of a fragment are the donor's to the bit, and so is the next outer step."""
    donor, returned = replica(np.zeros(8)), replica(np.zeros(8))
    donor.outer.step(0, np.array([1, 2, 3], np.float32), 7)
    copy = donor.outer.copy([0, 2])
    assert copy.size == donor.outer.copied_items([0, 2])
    returned.outer.restore([0, 2], copy)
    assert returned.outer.versions == [7, -1, -1]
    returned.adopt([0])
    assert returned.parameters[2:5].tolist() == donor.outer.part(0).tolist()
    for own in (donor, returned):
        own.outer.step(0, np.array([1, -1, 0.1], np.float32), 8)
    assert returned.outer.parameters().tobytes() == donor.outer.parameters().tobytes()


def test_a_state_continues_to_the_bit():
    """Saved and restored, inner and outer steps go on as if nothing had been."""
    noise = np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32)

    def go_on(own, first):
        for number, gradient in enumerate(noise[first : first + 3], first + 1):
            own.inner.step(number, own.parameters, gradient)
            own.outer.step(1, own.outer_gradient(1), number)
            own.merge(1)

    whole, resumed = replica(np.ones(8)), replica(np.zeros(8))
    go_on(whole, 0)
    resumed.state = whole.state
    for own in (whole, resumed):
        go_on(own, 3)
    assert whole.state.tobytes() == resumed.state.tobytes()


def test_a_state_of_another_model_is_refused():
    """A checkpoint of another size is an error."""
    with pytest.raises(UnhealthyError, match="other model"):
        replica(np.zeros(8)).state = np.zeros(5, np.float32)


def test_contributions_are_summed_in_float32():
    """The mean of three sites' coded gradients is that of their decoded values; a sum of codes would overflow."""
    codec = CODECS["e3m0"]
    values = [np.array([1, 0.5, -0.25], np.float32), np.array([1, 1, 1], np.float32), np.array([1, 0, 1], np.float32)]
    mean = mean_of([codec.encode(each) for each in values], codec, 3)
    assert mean.dtype == np.float32
    np.testing.assert_allclose(mean, [1, 0.5, 1.75 / 3], rtol=1e-6)
