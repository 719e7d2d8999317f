"""Bars that show what each part of path planning gains, by mode for every case, with the range over draws."""

from markupsafe import Markup

from c4bench.record.artefacts import Ablation, AblationCell
from c4bench.report.svg import drawing, element

_WIDTH, _ROW, _LEFT = 480.0, 20.0, 150.0


def cases(shown: Ablation) -> list[tuple[str, list[AblationCell]]]:
    """The cells of each case, in order of the modes."""
    order = {mode: index for index, mode in enumerate(shown.modes)}
    by_case: dict[str, list[AblationCell]] = {}
    for cell in shown.cells:
        by_case.setdefault(_case(cell), []).append(cell)
    return [(case, sorted(by_case[case], key=lambda cell: order[cell.mode])) for case in sorted(by_case)]


def bars(case: str, cells: list[AblationCell]) -> Markup:
    """A bar for each mode, on a scale that ends at the optimum, drawn as a line; whiskers are the range over draws."""
    scale = _WIDTH - _LEFT - 50
    drawn = []
    for row, cell in enumerate(cells):
        y = row * _ROW + 4
        drawn.append(element("text", cell.mode, x=_LEFT - 8, y=y + 11, text_anchor="end", class_="note"))
        mean, low, high = (scale * min(value, 1.0) for value in (cell.fraction, cell.low, cell.high))
        drawn.append(element("rect", x=_LEFT, y=y, width=mean, height=14, class_="value pass"))
        drawn.append(element("line", x1=_LEFT + low, x2=_LEFT + high, y1=y + 7, y2=y + 7, class_="limit"))
        drawn.append(element("text", f"{cell.fraction:.3f}", x=_LEFT + scale + 6, y=y + 11, class_="note"))
    height = len(cells) * _ROW + 8
    optimum = element("line", x1=_LEFT + scale, x2=_LEFT + scale, y1=0, y2=height, class_="axis")
    words = ", ".join(f"{cell.mode} {cell.fraction:.3f}" for cell in cells)
    return drawing(f"Share of the optimum: {case}", words, _WIDTH, height, *drawn, optimum)


def _case(cell: AblationCell) -> str:
    jobs = "1 job" if cell.jobs == 1 else f"{cell.jobs} jobs"
    return f"{cell.oversubscription}, {cell.state}, {jobs}"
