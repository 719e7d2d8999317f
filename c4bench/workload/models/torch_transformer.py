"""The model of `transformer` in PyTorch, with the same parameters at the same places."""

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from c4bench.workload.models.protocol import Layer, Tokens, Vector
from c4bench.workload.models.size import Layout, Size

_EPSILON = 1e-6


class TorchTransformer:
    """The model on this host's processor. From then on PyTorch has one thread in this process, for the same bits."""

    def __init__(self, size: Size) -> None:
        torch.set_num_threads(1)
        self._layout = Layout(size)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """See `protocol.Model`."""
        return tuple(self._layout.layers)

    def initial(self, seed: int) -> Vector:
        """See `protocol.Model`."""
        return self._layout.initial(seed)

    def gradient(self, parameters: Vector, tokens: Tokens, into: Vector) -> float:
        """See `protocol.Model`."""
        flat = torch.tensor(parameters, requires_grad=True)
        loss = self._loss(flat, tokens)
        loss.backward()
        into[:] = flat.grad.numpy()
        return float(loss.detach())

    def loss(self, parameters: Vector, tokens: Tokens) -> float:
        """See `protocol.Model`."""
        with torch.no_grad():
            return float(self._loss(torch.tensor(parameters), tokens))

    def _loss(self, flat: Any, tokens: Tokens) -> Any:  # noqa: ANN401  (torch's types are known only where it is)
        size, length = self._layout.size, tokens.shape[1] - 1
        embedding, positions, norm, *rest = (
            flat[tensor.begin : tensor.end].reshape(tensor.shape) for tensor in self._layout.tensors
        )
        rows = torch.from_numpy(tokens.astype(np.int64))
        x = embedding[rows[:, :-1]] + positions[:length]
        each = len(rest) // size.layers
        for first in range(0, len(rest), each):
            x = self._block(x, *rest[first : first + each])
        logits = _norm(x, norm) @ embedding.T
        return functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    def _block(self, x: Any, *tensors: Any) -> Any:  # noqa: ANN401
        """One block; `x` has the shape (sequences, length, width)."""
        before, inputs, query_norm, key_norm, output, between, hidden, back = tensors
        size = self._layout.size
        mixed = (_norm(x, before) @ inputs).unflatten(-1, (3, size.heads, size.head_width))
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            _norm(query, query_norm), _norm(key, key_norm), value, is_causal=True
        )
        x = x + attended.transpose(1, 2).flatten(2) @ output
        return x + functional.gelu(_norm(x, between) @ hidden, approximate="tanh") @ back


def _norm(x: Any, gain: Any) -> Any:  # noqa: ANN401
    return functional.rms_norm(x, gain.shape, gain, _EPSILON)
