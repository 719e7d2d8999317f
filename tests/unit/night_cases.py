"""Cases of parametrised tests that wait for `make night`, since others guard the same by day."""

import pytest


def at_night(*cases):
    """These cases, for `make night` only; one of several values is a tuple."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly) for case in cases]
