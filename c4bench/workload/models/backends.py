"""Which library computes a model. Each is imported only when a job uses it, since a host may do without."""

from importlib import import_module
from typing import Literal

from c4bench.errors import UsageError
from c4bench.workload.models.protocol import Model
from c4bench.workload.models.size import Size

Backend = Literal["numpy", "torch", "cuda"]
# What each imports, and how that is installed.
_PACKAGES: dict[Backend, tuple[tuple[str, ...], str]] = {
    "numpy": (("autograd", "threadpoolctl"), "pip install autograd threadpoolctl"),
    "torch": (("torch",), "pip install torch"),
    "cuda": (("torch",), "pip install torch"),
}


def check(backend: Backend) -> None:
    """Raise UsageError if a package that this backend needs is not installed here."""
    packages, command = _PACKAGES[backend]
    for package in packages:
        try:
            import_module(package)
        except ImportError:
            raise UsageError(f"models with backend {backend!r} need {package}; run: {command}") from None


def create(backend: Backend, size: Size, host_rank: int = 0) -> Model:
    """A transformer of that size. With `cuda`, the ranks of a host take its GPUs in turn, by their number on the host.

    Raises UsageError if a package that it needs is not installed here, or there is no GPU.
    """
    check(backend)
    if backend == "numpy":
        from c4bench.workload.models.transformer import Transformer  # noqa: PLC0415

        return Transformer(size)
    from c4bench.workload.models import torch_transformer  # noqa: PLC0415

    device = torch_transformer.gpu(host_rank) if backend == "cuda" else "cpu"
    return torch_transformer.TorchTransformer(size, device)
