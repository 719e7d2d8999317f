"""Which library computes a model. Each is imported only when a job uses it, since a host may do without."""

from importlib import import_module
from typing import Literal

from c4bench.errors import UsageError
from c4bench.workload.models.protocol import Model
from c4bench.workload.models.size import Size

Backend = Literal["numpy", "torch"]
# Module, class, what it imports and how that is installed.
_BACKENDS: dict[Backend, tuple[str, str, tuple[str, ...], str]] = {
    "numpy": ("transformer", "Transformer", ("autograd", "threadpoolctl"), "pip install 'c4bench[learn]'"),
    "torch": ("torch_transformer", "TorchTransformer", ("torch",), "pip install torch"),
}


def check(backend: Backend) -> None:
    """Raise UsageError if a package that this backend needs is not installed here."""
    _, _, packages, command = _BACKENDS[backend]
    for package in packages:
        try:
            import_module(package)
        except ImportError:
            raise UsageError(f"models with backend {backend!r} need {package}; run: {command}") from None


def create(backend: Backend, size: Size) -> Model:
    """A transformer of that size. Raises UsageError if a package that it needs is not installed here."""
    check(backend)
    module, name, _, _ = _BACKENDS[backend]
    model: Model = getattr(import_module(f"c4bench.workload.models.{module}"), name)(size)
    return model
