"""Tables as SONiC's commands print them: tabulate's format `simple`, in which a heading widens its column by two."""

from collections.abc import Sequence
from itertools import zip_longest

_PADDING = 2
_SEPARATOR = "  "


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, right: bool = True) -> str:
    """The table; cells may have several lines. Columns are aligned right, or all but those of numbers left."""
    lines = [[str(cell).split("\n") for cell in row] for row in rows]
    columns = list(zip(*lines, strict=True)) if lines else [()] * len(headings)
    widths = [
        max(len(heading) + _PADDING, *(len(line) for cell in column for line in cell), 0)
        for heading, column in zip(headings, columns, strict=True)
    ]
    aligned = [right or (bool(column) and all(_is_number(cell) for cell in column)) for column in columns]
    printed = [_line(headings, widths, aligned), _SEPARATOR.join("-" * width for width in widths)]
    for row in lines:
        printed += [_line(parts, widths, aligned) for parts in zip_longest(*row, fillvalue="")]
    return "\n".join(printed)


def _is_number(cell: Sequence[str]) -> bool:
    text = "".join(cell)
    return text.replace(".", "", 1).lstrip("-").isdecimal()


def _line(cells: Sequence[str], widths: Sequence[int], aligned: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, aligned, strict=True)
    )
    return _SEPARATOR.join(padded).rstrip()


def natural(key: str) -> tuple[object, ...]:
    """A key by which Ethernet8 comes before Ethernet12."""
    parts: list[tuple[int, object]] = []
    digits = ""
    for letter in f"{key}\0":
        if letter.isdigit():
            digits += letter
            continue
        if digits:
            parts.append((0, int(digits)))
            digits = ""
        parts.append((1, letter))
    return tuple(parts)
