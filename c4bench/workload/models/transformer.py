"""A small decoder-only transformer in numpy, differentiated by autograd.

Pre-norm blocks of causal attention and an MLP, with RMS norms and no biases. Queries and keys are normalised in each
head (QK-norm, as in Streaming DiLoCo's models). Positions are learned, and the embedding's matrix is also the output's
(tied). All is float32, and one thread computes it: the same arguments give the same bits on processors of one kind.
"""

from typing import Any

import autograd.numpy as np
import numpy
from autograd import make_vjp
from threadpoolctl import ThreadpoolController

from c4bench.workload.models import operations
from c4bench.workload.models.protocol import Layer, Tokens, Vector
from c4bench.workload.models.size import Layout, Size

_HIDDEN_SCORE = numpy.float32(-1e9)


class Transformer:
    """The model. From then on this process's BLAS has one thread: with several, the bits depend on their number."""

    def __init__(self, size: Size) -> None:
        ThreadpoolController().limit(limits=1, user_api="blas")
        self._layout = Layout(size)
        later = numpy.triu(numpy.ones((size.context, size.context), bool), 1)
        self._mask = numpy.where(later, _HIDDEN_SCORE, numpy.float32(0))

    @property
    def layers(self) -> tuple[Layer, ...]:
        """See `protocol.Model`."""
        return tuple(self._layout.layers)

    def initial(self, seed: int) -> Vector:
        """See `protocol.Model`."""
        return self._layout.initial(seed)

    def gradient(self, parameters: Vector, tokens: Tokens, into: Vector) -> float:
        """See `protocol.Model`."""
        pull_back, loss = make_vjp(lambda tensors: self._loss(tensors, tokens))(self._layout.split(parameters))
        for view, slope in zip(self._layout.split(into), pull_back(numpy.float32(1)), strict=True):
            view[:] = slope
        return float(loss)

    def loss(self, parameters: Vector, tokens: Tokens) -> float:
        """See `protocol.Model`."""
        return float(self._loss(self._layout.split(parameters), tokens))

    def _loss(self, tensors: Any, tokens: Tokens) -> Any:  # noqa: ANN401  (arrays, or autograd's boxes of arrays)
        size, length = self._layout.size, tokens.shape[1] - 1
        embedding, positions, norm, *rest = tensors
        rows = tokens.astype(numpy.intp)
        x = operations.lookup(embedding, rows[:, :-1]) + positions[:length]
        x = np.reshape(x, (-1, size.width))
        each = len(rest) // size.layers
        for first in range(0, len(rest), each):
            x = self._block(x, length, *rest[first : first + each])
        logits = np.dot(operations.rms_norm(x, norm), np.transpose(embedding))
        return operations.cross_entropy(logits, rows[:, 1:].reshape(-1))

    def _block(self, x: Any, length: int, *tensors: Any) -> Any:  # noqa: ANN401
        """One block; `x` has the shape (sequences * length, width)."""
        before, inputs, query_norm, key_norm, output, between, hidden, back = tensors
        mixed = self._attend(np.dot(operations.rms_norm(x, before), inputs), length, query_norm, key_norm)
        x = x + np.dot(mixed, output)
        return x + np.dot(operations.gelu(np.dot(operations.rms_norm(x, between), hidden)), back)

    def _attend(self, x: Any, length: int, query_norm: Any, key_norm: Any) -> Any:  # noqa: ANN401
        """Causal attention; `x` has the shape (sequences * length, 3 * width): queries, keys and values."""
        size = self._layout.size
        heads = np.reshape(x, (-1, length, 3, size.heads, size.head_width))
        query, key, value = np.transpose(heads, (2, 0, 3, 1, 4))
        query, key = operations.rms_norm(query, query_norm), operations.rms_norm(key, key_norm)
        scores = np.matmul(query, np.swapaxes(key, -1, -2)) * numpy.float32(size.head_width**-0.5)
        mixed = np.matmul(operations.causal_softmax(scores, self._mask[:length, :length]), value)
        return np.reshape(np.transpose(mixed, (0, 2, 1, 3)), (-1, size.width))
