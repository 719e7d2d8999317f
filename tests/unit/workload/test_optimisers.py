"""Optimisers take the steps that their papers write down."""

import numpy as np
import pytest

from c4bench.workload.models.optimisers import AdamW, Nesterov

GRADIENTS = np.random.default_rng(2).normal(0.0, 1.0, (20, 50)).astype(np.float32)
START = np.random.default_rng(3).normal(0.0, 1.0, 50).astype(np.float32)


def test_adamw_steps_computed_by_hand():
    """Two steps with betas of 1/2: moments 1, 4 after gradient 2; 0.5, 2 after gradient 0 (before correction)."""
    optimiser = AdamW(1, rate=0.1, betas=(0.5, 0.5), epsilon=0.0, decay=1.0)
    parameters = np.array([1.0], np.float32)
    optimiser.step(1, parameters, np.array([2.0], np.float32))
    # Corrected moments: 1 / 0.5 = 2, and 2 / 0.5 = 4. Decay first: 1 - 0.1; then 0.1 * 2 / sqrt(4).
    assert parameters[0] == pytest.approx(0.8, rel=1e-6)
    assert optimiser.state.tolist() == [1.0, 2.0]
    optimiser.step(2, parameters, np.array([0.0], np.float32))
    # Corrected moments: 0.5 / 0.75 = 2/3, and 1 / 0.75 = 4/3.
    assert parameters[0] == pytest.approx(0.8 * 0.9 - 0.1 * (2 / 3) / (4 / 3) ** 0.5, rel=1e-6)
    assert optimiser.state.tolist() == [0.5, 1.0]


def test_epsilon_is_outside_the_root():
    """A gradient of 0 divides 0 by epsilon; one of 3 by 3 + epsilon."""
    parameters = np.array([0.0, 0.0], np.float32)
    AdamW(2, rate=1.0, epsilon=1.0, decay=0.0).step(1, parameters, np.array([0.0, 3.0], np.float32))
    assert parameters.tolist() == pytest.approx([0.0, -0.75], rel=1e-6)


def test_nesterov_steps_computed_by_hand():
    """Rate 1/2, momentum 1/2: the velocity is added once more, ahead of time."""
    optimiser = Nesterov(1, rate=0.5, momentum=0.5)
    parameters = np.array([10.0], np.float32)
    optimiser.step(parameters, np.array([4.0], np.float32))
    assert (parameters[0], optimiser.state[0]) == (10 - 0.5 * (4 + 0.5 * 4), 4)
    optimiser.step(parameters, np.array([2.0], np.float32))
    assert (parameters[0], optimiser.state[0]) == (7 - 0.5 * (2 + 0.5 * 4), 4)


def trained(name, gradients, start=START):
    """The parameters and the state after these gradients."""
    parameters = start.copy()
    optimiser = AdamW(start.size, 0.01) if name == "adamw" else Nesterov(start.size, 0.4, 0.9)
    for number, gradient in enumerate(gradients, 1):
        optimiser.step(*((number,) if name == "adamw" else ()), parameters, gradient)
    return parameters, optimiser


@pytest.mark.parametrize("name", ["adamw", "nesterov"])
def test_a_restored_state_goes_on_bit_for_bit(name):
    """Parameters and state, copied after ten steps, give the same bits ten steps later; gradients are left alone."""
    given = GRADIENTS.copy()
    whole, _ = trained(name, given)
    assert given.tobytes() == GRADIENTS.tobytes()
    half, optimiser = trained(name, GRADIENTS[:10])
    fresh = AdamW(half.size, 0.01) if name == "adamw" else Nesterov(half.size, 0.4, 0.9)
    fresh.state[:] = np.frombuffer(optimiser.state.tobytes(), np.float32)
    for number, gradient in enumerate(GRADIENTS[10:], 11):
        fresh.step(*((number,) if name == "adamw" else ()), half, gradient)
    assert half.tobytes() == whole.tobytes()
    assert half.dtype == fresh.state.dtype == np.float32


@pytest.mark.parametrize("name", ["adamw", "nesterov"])
def test_pytorch_takes_the_same_steps(name):
    """Twenty steps end where those of PyTorch's optimisers do."""
    torch = pytest.importorskip("torch", reason="torch-absent: steps are compared where PyTorch is installed")
    weight = torch.nn.Parameter(torch.tensor(START))
    other = (
        torch.optim.AdamW([weight], lr=0.01, weight_decay=0.1)
        if name == "adamw"
        else torch.optim.SGD([weight], lr=0.4, momentum=0.9, nesterov=True)
    )
    for gradient in GRADIENTS:
        weight.grad = torch.tensor(gradient)
        other.step()
    ours, _ = trained(name, GRADIENTS)
    assert ours == pytest.approx(weight.detach().numpy(), rel=1e-5, abs=1e-6)
