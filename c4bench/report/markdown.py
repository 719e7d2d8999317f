"""A run, or the comparison of two, as Markdown for the summary of a CI job."""

import math
from collections.abc import Iterable, Iterator

from c4bench.foreign_text import markdown, markdown_code
from c4bench.model.measurement import Measurement, Outcome
from c4bench.record import RunDirectory
from c4bench.report.again import nodes, repeat_run, repeat_scenario
from c4bench.report.compare import Comparison
from c4bench.report.headlines import format_labels, format_limit, format_value, headlines, plain
from c4bench.report.verdict import Verdict

_WORDS = {"pass": "passed", "fail": "failed", "inconclusive": "inconclusive", "skip": "skipped"}
_TITLES = {Outcome.PASS: "Passed", Outcome.FAIL: "Failed", Outcome.INCONCLUSIVE: "Inconclusive"}
# CI services cut summaries; what moved less is in the page.
_ROWS = 50
_LONGEST_COMMAND = 4096


def summary(run: RunDirectory, verdict: Verdict) -> str:
    """The verdict on a run, its failures with the commands to run them again, and its limits."""
    provenance, known = run.provenance(), nodes(run)
    lines = [f"## {_TITLES[verdict.outcome]}: {markdown(run.path.resolve().name)}", "", counts(verdict), ""]
    for ending in verdict.not_passed:
        lines.append(f"* **{markdown(ending.scenario)}** {_WORDS[ending.outcome]}: {markdown(ending.reason)}")
        if ending.scenario in known:
            lines.append(f"  {_command(repeat_scenario(provenance, known[ending.scenario]))}")
    lines += [f"* {number} skipped: {markdown(reason)}" for reason, number in verdict.skips.items()]
    heads = [head.measurement for head in headlines((*verdict.measurements, *verdict.timings))]
    if heads:
        lines += ["", *_table(("measurement", "of", "value", "limit", "outcome"), map(_row, heads))]
    lines += ["", f"All of it again: {_command(repeat_run(provenance))}"]
    return "\n".join(lines) + "\n"


def counts(verdict: Verdict) -> str:
    """How many scenarios and limits had which outcome, in one line."""
    by_outcome = verdict.scenario_counts
    scenarios = ", ".join(f"{by_outcome[outcome]} {word}" for outcome, word in _WORDS.items() if outcome in by_outcome)
    held = verdict.count(Outcome.PASS)
    limits = held + verdict.count(Outcome.FAIL) + verdict.count(Outcome.INCONCLUSIVE)
    parts = (f"scenarios: {scenarios}" if scenarios else "", f"{held} of {limits} limits met" if limits else "")
    return "; ".join(filter(None, parts)) or "nothing was judged"


def comparison(names: tuple[str, str], found: Comparison) -> str:
    """What differs between two runs of these names."""
    lines = [f"## {markdown(names[0])} and {markdown(names[1])}", ""]
    if found.scenarios:
        rows = (tuple(map(markdown, row)) for row in found.scenarios)
        lines += [*_table(("scenario", "before", "after"), rows), ""]
    if found.pairs:
        head = ("measurement", "of", "before", "after", "change", "outcome")
        lines += [*_table(head, _changes(found)), ""]
    if (left := len(found.pairs) - _ROWS) > 0:
        lines.append(f"{left} more measurements differ.")
    lines.append(f"{found.same} measurements are the same.")
    return "\n".join(lines) + "\n"


def _changes(found: Comparison) -> Iterator[tuple[str, ...]]:
    for pair in found.pairs[:_ROWS]:
        both = [one for one in pair if one]
        outcomes = dict.fromkeys(one.outcome.value for one in both)
        values = (markdown(format_value(one)) if one else "" for one in pair)
        change = f"{pair.change:+.1%}" if math.isfinite(pair.change) else ""
        yield (*_what(both[-1]), *values, change, " → ".join(outcomes))


def _row(one: Measurement) -> tuple[str, ...]:
    return (*_what(one), markdown(format_value(one)), markdown(format_limit(one)), one.outcome.value)


def _what(one: Measurement) -> tuple[str, str]:
    words = plain(one.name)
    of = ": ".join(filter(None, (one.scenario, format_labels(one))))
    name = markdown_code(one.name).replace("|", "\\|")
    return name + (f" ({words})" if words else ""), markdown(of)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """A table whose cells are Markdown already."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _command(line: str) -> str:
    return markdown_code(line, _LONGEST_COMMAND)
