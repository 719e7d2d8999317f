"""What the Streaming DiLoCo paper (arXiv 2501.18512v1) publishes of its simulated compute utilisation: its Table 4.

Its figures are points of a grid of 50 bandwidths from 0.1 to 1,000 Gbit/s, evenly spaced by their logarithm: a step is
20.7 %. The paper does not say so, but all 75 figures are such points, rounded first to two decimals and then to one.
"""

from enum import StrEnum
from typing import NamedTuple

import numpy as np

SOURCE = "arXiv 2501.18512v1, Table 4"
GRID_BPS: tuple[float, ...] = tuple(np.logspace(8, 12, 50).tolist())
UTILISATIONS = (0.5, 0.8, 0.9, 0.95, 0.99)
# The paper's H: steps from one exchange of a layer to the next; layers of a fragment; and tau: the overlap in steps.
PERIOD, FRAGMENT_LAYERS, OVERLAP = 100, 3, 1
# What 4 bits send of the bits that the other methods send.
FOUR_BITS = 0.25


class Model(NamedTuple):
    """A model of the table: parameters, layers, and the seconds that a step computes."""

    name: str
    layers: int
    parameters: float
    step_s: float


class Method(StrEnum):
    """A way to train on several sites; each of the last three adds to the one before."""

    DATA_PARALLEL = "data-parallel"
    DILOCO = "DiLoCo"
    STREAMING = "Streaming DiLoCo"
    OVERLAPPED = "+ overlap"
    FOUR_BIT = "+ 4 bits"


# Those of the table, and those of the paper's figure 16, of whose curves its text gives two points.
MODELS = (Model("1B", 24, 1e9, 0.1), Model("10B", 48, 1e10, 0.8), Model("100B", 108, 1e11, 4.9))
LARGER_MODELS = (Model("Llama 405B", 126, 405e9, 26.9), Model("DeepSeek-V3", 61, 671e9, 20.1))

# Gbit/s as printed, by model and method, for each of `UTILISATIONS`.
TABLE_4: dict[tuple[str, Method], tuple[str, ...]] = {
    ("1B", Method.DATA_PARALLEL): ("86.8", "152.6", "184.2", "222.3", "569.0"),
    ("1B", Method.DILOCO): ("1.4", "6.2", "13.3", "23.3", "86.8"),
    ("1B", Method.STREAMING): ("1.4", "5.2", "9.1", "16.0", "28.1"),
    ("1B", Method.OVERLAPPED): ("1.4", "4.3", "6.2", "9.1", "11.0"),
    ("1B", Method.FOUR_BIT): ("0.4", "0.9", "1.7", "2.0", "3.0"),
    ("10B", Method.DATA_PARALLEL): ("104.8", "222.3", "222.3", "268.3", "471.5"),
    ("10B", Method.DILOCO): ("1.7", "7.5", "16.0", "33.9", "104.8"),
    ("10B", Method.STREAMING): ("1.7", "5.2", "9.1", "13.3", "19.3"),
    ("10B", Method.OVERLAPPED): ("1.7", "3.6", "5.2", "6.2", "7.5"),
    ("10B", Method.FOUR_BIT): ("0.4", "0.9", "1.4", "1.4", "1.7"),
    ("100B", Method.DATA_PARALLEL): ("184.2", "323.8", "390.7", "390.7", "471.5"),
    ("100B", Method.DILOCO): ("3.0", "11.0", "23.3", "49.4", "184.2"),
    ("100B", Method.STREAMING): ("2.4", "6.2", "9.1", "11.0", "19.3"),
    ("100B", Method.OVERLAPPED): ("1.7", "3.6", "4.3", "5.2", "5.2"),
    ("100B", Method.FOUR_BIT): ("0.5", "0.9", "1.1", "1.1", "1.4"),
}


def printed(bandwidth_bps: float) -> str:
    """The bandwidth as the paper prints it, in Gbit/s: rounded to two decimals, and these to one."""
    return f"{round(bandwidth_bps / 1e9, 2):.1f}"


def grid_points(text: str) -> tuple[int, ...]:
    """The indices of the grid's bandwidths that are printed so: `"0.5"` is two of them, a text not on the grid none."""
    return tuple(index for index, bandwidth_bps in enumerate(GRID_BPS) if printed(bandwidth_bps) == text)
