"""Where the data files of the project lie: the top of a checkout, or inside the installed package."""

from pathlib import Path

from c4bench.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent


def resource(*parts: str) -> Path:
    """The file or folder that is `parts` from the repository's top: `resource("reports", "templates")`.

    A checkout's own files win, so that an edit takes effect without a build; a wheel carries the same tree under
    `c4bench/data`. Raises UsageError when it is in neither.
    """
    for root in _roots():
        path = root.joinpath(*parts)
        if path.exists():
            return path
    raise UsageError(f"c4bench's data file {'/'.join(parts)} is missing; install c4bench again")


def _roots() -> tuple[Path, ...]:
    # Beside an installed package lie other people's packages: only a pyproject.toml makes the parent our checkout.
    checkout = (_CHECKOUT,) if (_CHECKOUT / "pyproject.toml").is_file() else ()
    return (*checkout, _PACKAGE / "data")
