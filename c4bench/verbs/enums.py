"""The verbs constants, with any version of pyverbs."""

from typing import Any


def _load() -> Any:  # noqa: ANN401  (a module without type information)
    try:
        from pyverbs import libibverbs_enums as constants  # noqa: PLC0415  (rdma-core 59 and later)
    except ImportError:
        from pyverbs import enums as constants  # noqa: PLC0415  (rdma-core 58 and earlier)
    return constants


ENUMS = _load()


def names(prefix: str) -> dict[int, str]:
    """The names, without the prefix, of all constants that start with it, by value: `names("IBV_QPS_")[3] == "RTS"`."""
    return {int(value): key[len(prefix) :] for key, value in vars(ENUMS).items() if key.startswith(prefix)}
