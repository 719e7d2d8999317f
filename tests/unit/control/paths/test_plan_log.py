"""The log lines of path planning name the changes and their reasons."""

from c4bench.control.paths.service import TUNING, PlanLog


def logged(caplog):
    """The records since the last call."""
    records = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return records


def test_changes_are_counted_once_and_by_reason(caplog):
    """A report logs one line for each reason with changes, and tuning, which goes on for long, at DEBUG."""
    caplog.set_level("DEBUG", "c4bench")
    log = PlanLog()
    for changes, why in ((4, "new flows of a"), (4, "a ended"), (6, "new flows of a"), (7, TUNING)):
        log.note(changes, why)
    log.report([])
    assert logged(caplog) == [
        ("INFO", "6 changes of paths or weights: new flows of a"),
        ("DEBUG", f"1 changes of paths or weights: {TUNING}"),
    ]
    log.note(7, "a ended")
    log.report([])
    assert logged(caplog) == []


def test_a_remark_is_logged_as_a_warning_once(caplog):
    """A remark of the planner is logged unchanged when it is new, and not again."""
    log = PlanLog()
    for remarks in (["100 %s"], ["100 %s"], ["100 %s", "more"]):
        log.report(remarks)
    assert logged(caplog) == [("WARNING", "100 %s"), ("WARNING", "more")]
