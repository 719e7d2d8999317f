"""What the Streaming DiLoCo paper (arXiv 2501.18512v1) publishes of its simulated compute utilisation: its Table 4.

The paper does not say that its figures are points of a grid, but all 75 figures are such points, rounded first to two
decimals and then to one.
"""

from collections.abc import Sequence

from c4bench.cost.utilisation import GRID_BPS, UTILISATIONS, Cell, Method, Model, printed

SOURCE = "arXiv 2501.18512v1, Table 4"
# Those of the paper's figure 16, of whose curves its text gives two points.
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


def grid_points(text: str) -> tuple[int, ...]:
    """The indices of the grid's bandwidths that are printed so: `"0.5"` is two of them, a text not on the grid none."""
    return tuple(index for index, bandwidth_bps in enumerate(GRID_BPS) if printed(bandwidth_bps) == text)


def published(cell: Cell) -> str:
    """What the paper prints for this cell; empty for a model that it does not have."""
    row = TABLE_4.get((cell.model, cell.method))
    return row[UTILISATIONS.index(cell.utilisation)] if row else ""


def steps_off(cell: Cell) -> int:
    """Steps of the grid from the published bandwidth to this one: negative if this one is lower, 0 without one."""
    return min((cell.point - other for other in grid_points(published(cell))), key=abs, default=0)


def on_grid(table: Sequence[Cell]) -> int:
    """How many cells of the paper's models have the published bandwidth."""
    return sum(published(cell) != "" and steps_off(cell) == 0 for cell in table)


def within_step(table: Sequence[Cell]) -> int:
    """How many cells of the paper's models are at most one step of the grid off."""
    return sum(published(cell) != "" and abs(steps_off(cell)) <= 1 for cell in table)
