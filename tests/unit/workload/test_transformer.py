"""The transformer, in numpy and in PyTorch: its parameters, its gradient, and the same bits every time."""

import os
import subprocess
import sys

import numpy as np
import pytest

from c4bench.errors import UsageError
from c4bench.workload.models import backends, corpus
from c4bench.workload.models.size import Layout, Size

SIZE = Size(layers=2, width=16, heads=2, context=24)
TOKENS = corpus.load().batch(1, 0, 0, 3, SIZE.context)


@pytest.fixture(scope="module")
def model():
    """A small transformer."""
    return backends.create("numpy", SIZE)


def moved(model, seed=5):
    """Parameters that are not at their start, so that no gain is 1 and no derivative is small by chance."""
    start = model.initial(seed)
    return start + np.random.default_rng(seed).normal(0.0, 0.1, start.size).astype(np.float32)


def gradient(model, parameters, tokens=TOKENS):
    """The loss and a vector with its gradient."""
    into = np.full(parameters.size, np.nan, np.float32)
    return model.gradient(parameters, tokens, into), into


def reference_loss(parameters, tokens):
    """The mean loss by the formulas, one token after the other, in double precision and without a mask."""
    tensors = [view.astype(np.float64) for view in Layout(SIZE).split(parameters)]
    embedding, positions, final, *rest = tensors
    losses = []
    for sequence in tokens:
        stream = [embedding[token] + positions[at] for at, token in enumerate(sequence[:-1])]
        for block in range(SIZE.layers):
            stream = reference_block(stream, *rest[8 * block : 8 * block + 8])
        for x, target in zip(stream, sequence[1:], strict=True):
            odds = np.exp(embedding @ norm(x, final))
            losses.append(-np.log(odds[target] / odds.sum()))
    return np.mean(losses)


def reference_block(stream, before, inputs, query_norm, key_norm, output, between, hidden, back):
    mixed = [(norm(x, before) @ inputs).reshape(3, SIZE.heads, -1) for x in stream]
    after = []
    for at, x in enumerate(stream):
        heads = []
        for head in range(SIZE.heads):
            query = norm(mixed[at][0, head], query_norm)
            odds = [
                np.exp(query @ norm(mixed[seen][1, head], key_norm) / np.sqrt(SIZE.head_width))
                for seen in range(at + 1)
            ]
            heads.append(sum(odd * mixed[seen][2, head] for seen, odd in enumerate(odds)) / sum(odds))
        y = x + np.concatenate(heads) @ output
        z = norm(y, between) @ hidden
        bent = np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))
        after.append(y + (z * (1 + bent) / 2) @ back)
    return after


def norm(x, gain):
    return x / np.sqrt(np.mean(x * x) + 1e-6) * gain


def test_layers_are_the_whole_vector_without_gaps(model):
    """The embedding, then the blocks, each where the one before ends; tensors likewise within them."""
    layout = Layout(SIZE)
    assert [layer.name for layer in model.layers] == ["embedding", "block 0", "block 1"]
    assert [layer.begin for layer in model.layers] == [0, *(layer.end for layer in model.layers[:-1])]
    assert model.layers[-1].end == layout.parameters == model.initial(0).size
    width = SIZE.width
    embedding, block = (256 + SIZE.context + 1) * width, 2 * width + 2 * SIZE.head_width + 12 * width * width
    assert [layer.end - layer.begin for layer in model.layers] == [embedding, block, block]
    assert [tensor.begin for tensor in layout.tensors] == [0, *(tensor.end for tensor in layout.tensors[:-1])]


def test_the_start_depends_on_the_seed_alone(model):
    """The same seed gives the same bits, another seed others; the first loss is near that of guessing a byte."""
    start = model.initial(3)
    assert start.dtype == np.float32
    assert start.tobytes() == model.initial(3).tobytes() != model.initial(4).tobytes()
    assert model.loss(start, TOKENS) == pytest.approx(np.log(256), abs=0.1)


def test_the_loss_is_what_the_formulas_say(model):
    """A token after the other in double precision gives the same loss: attention sees what came before and no more."""
    parameters = moved(model)
    assert model.loss(parameters, TOKENS) == pytest.approx(reference_loss(parameters, TOKENS), rel=1e-5)


def test_the_gradient_is_the_slope_of_the_loss(model):
    """A step in each tensor, along its gradient, changes the loss as the gradient says, by the formulas."""
    parameters = moved(model)
    loss, exact = gradient(model, parameters)
    assert loss == model.loss(parameters, TOKENS)
    tokens = TOKENS[:1]
    _, exact = gradient(model, parameters, tokens)
    for tensor in Layout(SIZE).tensors:
        direction = np.zeros(parameters.size)
        direction[tensor.begin : tensor.end] = exact[tensor.begin : tensor.end]
        length = np.linalg.norm(direction)
        step = 1e-4 * direction / length
        slope = (reference_loss(parameters + step, tokens) - reference_loss(parameters - step, tokens)) / 2e-4
        assert slope == pytest.approx(length, rel=2e-3), tensor.name


def test_shorter_sequences_than_the_context(model):
    """A batch may be shorter than the context; the loss is that of the same tokens by the formulas."""
    parameters = moved(model)
    assert model.loss(parameters, TOKENS[:, :8]) == pytest.approx(reference_loss(parameters, TOKENS[:, :8]), rel=1e-5)


BITS = """
import hashlib, numpy as np
from c4bench.workload.models import backends, corpus
from c4bench.workload.models.size import Size
size = Size(layers=2, width=64, heads=4, context=64)
model = backends.create("numpy", size)
start = model.initial(1)
into = np.empty_like(start)
loss = model.gradient(start, corpus.load().batch(1, 0, 0, 8, size.context), into)
print(loss.hex(), hashlib.sha256(into).hexdigest())
"""


def test_the_number_of_blas_threads_changes_no_bit():
    """Processes that would use one thread or four get the same loss and the same gradient."""
    bits = {
        subprocess.run(
            [sys.executable, "-c", BITS],
            env=os.environ | {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads},
            check=True,
            capture_output=True,
        ).stdout
        for threads in ("1", "4")
    }
    assert len(bits) == 1


@pytest.mark.parametrize("parameters", ["start", "moved"])
@pytest.mark.parametrize("backend", ["torch", "cuda"])
def test_pytorch_computes_the_same(model, parameters, backend):
    """Loss and gradient of the model in PyTorch are those in numpy, and its layers and its start are the same."""
    torch = pytest.importorskip("torch", reason="torch-absent: PyTorch's models are compared where it is installed")
    if backend == "cuda" and not torch.cuda.is_available():
        pytest.skip("gpu-absent: the model on a GPU is compared where PyTorch has one")
    other = backends.create(backend, SIZE)
    assert other.layers == model.layers
    assert other.initial(5).tobytes() == model.initial(5).tobytes()
    vector = model.initial(5) if parameters == "start" else moved(model)
    (loss, exact), (torch_loss, torch_exact) = gradient(model, vector), gradient(other, vector)
    assert torch_loss == pytest.approx(loss, rel=1e-5)
    assert other.loss(vector, TOKENS) == pytest.approx(loss, rel=1e-5)
    for layer in model.layers:
        part = slice(layer.begin, layer.end)
        assert np.linalg.norm(torch_exact[part] - exact[part]) <= 1e-4 * np.linalg.norm(exact[part])


@pytest.mark.parametrize(
    ("backend", "package", "command"),
    [
        ("numpy", "autograd", "pip install autograd threadpoolctl"),
        ("torch", "torch", "pip install torch"),
        ("cuda", "torch", "pip install torch"),
    ],
)
def test_a_missing_package_is_named_with_its_command(monkeypatch, backend, package, command):
    """Without autograd or PyTorch there is one line: what is missing, and how it is installed."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=f"need {package}; run: ") as raised:
        backends.create(backend, SIZE)
    assert str(raised.value).endswith(command)


def test_a_gpu_gives_the_same_bits_each_time():
    """Two gradients of the same batch on a GPU have the same bits."""
    torch = pytest.importorskip("torch", reason="torch-absent: PyTorch's models are compared where it is installed")
    if not torch.cuda.is_available():
        pytest.skip("gpu-absent: the model on a GPU is compared where PyTorch has one")
    other = backends.create("cuda", SIZE)
    assert len({gradient(other, moved(other))[1].tobytes() for _ in range(20)}) == 1


def test_a_missing_gpu_is_said():
    """Where PyTorch has no GPU, backend `cuda` is refused in one line."""
    torch = pytest.importorskip("torch", reason="torch-absent: needs PyTorch")
    if torch.cuda.is_available():
        pytest.skip("gpu-present: nothing is missing")
    with pytest.raises(UsageError, match="needs a GPU"):
        backends.create("cuda", SIZE)


@pytest.mark.parametrize("wrong", [{"layers": 0}, {"heads": 3}, {"context": -1}])
def test_an_impossible_size_is_refused(wrong):
    """A size names the field that no model can have."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Size(**wrong)
