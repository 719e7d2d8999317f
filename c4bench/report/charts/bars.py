"""Bars: a measurement against its limit (Few: Bullet Graph Design Specification, 2013), and what C4P's parts gain."""

from markupsafe import Markup

from c4bench.model.measurement import Measurement
from c4bench.record import RunDirectory
from c4bench.record.artefacts import Ablation, AblationCell
from c4bench.report.svg import drawing, element, percent, strip

_HEIGHT = 14.0
_WIDTH, _ROW, _LEFT = 480.0, 20.0, 150.0


def bullet(measurement: Measurement) -> Markup:
    """The value as a bar from zero, the limit as a mark; the side that passes is shaded."""
    sign, bound = measurement.limit.split()
    limit = float(bound)
    span = max(measurement.value, limit, 0.0) * 1.15 or 1.0
    at, reach = max(limit, 0.0) / span, max(measurement.value, 0.0) / span
    good = (at, 1 - at) if sign[0] == ">" else (0.0, at)
    shade = () if sign == "==" else (_bar(*good, 0, _HEIGHT, "good"),)
    value = _bar(0.0, reach, 4, 6, f"value {measurement.outcome}")
    mark = element("line", x1=percent(at), x2=percent(at), y1=0, y2=_HEIGHT, class_="limit")
    title = f"{measurement.name}: {measurement.outcome}"
    description = f"{measurement.value:.6g} {measurement.unit}, limit {measurement.limit}."
    return strip(title, description, _HEIGHT, _bar(0.0, 1.0, 0, _HEIGHT, "track"), *shade, value, mark)


def _bar(start: float, length: float, y: float, height: float, kind: str) -> Markup:
    return element("rect", x=percent(start), width=percent(length), y=y, height=height, rx=2, class_=kind)


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


def ablations(run: RunDirectory) -> list[tuple[str, list[AblationCell], Markup]]:
    """Every case of every ablation; scenarios with the same modes are drawn together."""
    cells_by_modes: dict[tuple[str, ...], list[AblationCell]] = {}
    for ablation in run.load_all("ablation", Ablation).values():
        cells_by_modes.setdefault(ablation.modes, []).extend(ablation.cells)
    merged = [Ablation(modes, tuple(cells)) for modes, cells in cells_by_modes.items()]
    return [(case, cells, bars(case, cells)) for ablation in merged for case, cells in cases(ablation)]
