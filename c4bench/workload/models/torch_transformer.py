"""The model of `transformer` in PyTorch, on a processor or a GPU, with the same parameters at the same places."""

import os
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from c4bench.errors import UsageError
from c4bench.workload.models.protocol import Tokens, Vector
from c4bench.workload.models.size import LaidOut, Size

_EPSILON = 1e-6


class TorchTransformer(LaidOut):
    """The model on a device of this host. From then on PyTorch has one thread in this process, for the same bits.

    On a GPU, PyTorch uses its deterministic algorithms only.
    """

    def __init__(self, size: Size, device: str = "cpu") -> None:
        torch.set_num_threads(1)
        if device != "cpu":
            # cuBLAS reads this when the process first uses it.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(mode=True)
        super().__init__(size)
        self._device = device

    def gradient(self, parameters: Vector, tokens: Tokens, into: Vector) -> float:
        """See `protocol.Model`."""
        flat = torch.tensor(parameters, device=self._device, requires_grad=True)
        loss = self._loss(flat, tokens)
        loss.backward()
        into[:] = flat.grad.cpu().numpy()
        return float(loss.detach())

    def loss(self, parameters: Vector, tokens: Tokens) -> float:
        """See `protocol.Model`."""
        with torch.no_grad():
            return float(self._loss(torch.tensor(parameters, device=self._device), tokens))

    def _loss(self, flat: Any, tokens: Tokens) -> Any:  # noqa: ANN401  (torch's types are known only where it is)
        size, length = self._layout.size, tokens.shape[1] - 1
        embedding, positions, norm, *rest = (
            flat[tensor.begin : tensor.end].reshape(tensor.shape) for tensor in self._layout.tensors
        )
        rows = torch.from_numpy(tokens.astype(np.int64)).to(self._device)
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


def gpu(host_rank: int) -> str:
    """The GPU of a rank with this number on its host. Raises UsageError if this process sees none."""
    if not torch.cuda.is_available():
        raise UsageError("backend 'cuda' needs a GPU that PyTorch can use, and it sees none here; see nvidia-smi")
    return f"cuda:{host_rank % torch.cuda.device_count()}"


def _norm(x: Any, gain: Any) -> Any:  # noqa: ANN401
    return functional.rms_norm(x, gain.shape, gain, _EPSILON)
