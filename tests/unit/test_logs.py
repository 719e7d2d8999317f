"""The formats of log lines: text, JSON, and text for the systemd journal."""

import io
import json
import logging
import os
import re
from pathlib import Path

import pytest

from c4bench import logs
from c4bench.cli.main import main
from c4bench.model.diagnosis import Component

PACKAGE = Path(logs.__file__).parent
CONFIGURING = re.compile(r"\b(basicConfig|dictConfig|fileConfig|addHandler|setLevel|logs\.configure)\(")
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def logged(level="info", form="text", stream=None):
    """Configure, and return what is written from here on."""
    written = stream or io.StringIO()
    logs.configure(level, form, written)
    return written


def test_a_line_of_text_has_time_level_logger_and_message():
    """One line for one record, also where the message has line breaks in it."""
    written = logged()
    logging.getLogger("c4bench.control.master").warning("agent of %s is\nlost", "h3", extra={"host": "h3"})
    assert re.fullmatch(rf"{TIME} WARNING c4bench\.control\.master: agent of h3 is\\nlost\n", written.getvalue())


def test_a_line_of_json_has_the_fields_of_its_record():
    """Time, level, logger, message and each field of `extra`; a value that JSON cannot hold is written as a string."""
    written = logged(form="json")
    nic = Component("nic", "h5/0", "rx")
    logging.getLogger("c4bench.x").info("%d of %s", 3, "\udc80", extra={"host": "h5", "component": nic, "time": 7})
    (line,) = written.getvalue().splitlines()
    found = json.loads(line)
    assert re.fullmatch(TIME, found.pop("time"))
    said = {"level": "INFO", "logger": "c4bench.x", "message": "3 of \udc80", "host": "h5", "component": str(nic)}
    assert found == said


@pytest.mark.parametrize("form", logs.FORMATS)
def test_an_exception_comes_with_its_traceback(form):
    """Text has the traceback on further lines, JSON in the same line."""
    written = logged(form=form)
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logging.getLogger("c4bench.x").exception("it failed")
    lines = written.getvalue().splitlines()
    told = json.loads(lines[0])["exception"].splitlines() if form == "json" else lines[1:]
    assert told[0] == "Traceback (most recent call last):"
    assert told[-1] == "ZeroDivisionError: division by zero"
    assert (len(lines) == 1) == (form == "json")


@pytest.mark.parametrize("ours", [True, False])
def test_only_the_journal_gets_priorities_and_no_time(monkeypatch, tmp_path, ours):
    """Only where JOURNAL_STREAM names the very file written to does every line begin with its priority."""
    with (tmp_path / "stderr").open("w+") as file:
        known = os.fstat(file.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{known.st_dev}:{known.st_ino + (not ours)}")
        logged("debug", stream=file)
        logger = logging.getLogger("c4bench.x")
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logger.log(level, "said")
        logger.error("failed", exc_info=ValueError("why"))
        lines = (tmp_path / "stderr").read_text().splitlines()
    if ours:
        assert lines[:5] == [*(f"<{number}>c4bench.x: said" for number in (7, 6, 4, 3)), "<3>c4bench.x: failed"]
        assert lines[5:] == ["<3>ValueError: why"]
    else:
        assert all(re.match(TIME, line) for line in lines[:5])


def test_the_level_applies_to_c4bench_and_other_packages_log_warnings():
    """Other packages log from WARNING on, or from a higher level; configuring again replaces the handler."""
    replaced = logged("error")
    written = logged("debug")
    for name in ("c4bench.x", "websockets.server"):
        for level in (logging.DEBUG, logging.INFO, logging.WARNING):
            logging.getLogger(name).log(level, "%s", level)
    said = [line.split()[1:3] for line in written.getvalue().splitlines()]
    ours = [[level, "c4bench.x:"] for level in ("DEBUG", "INFO", "WARNING")]
    assert said == [*ours, ["WARNING", "websockets.server:"]]
    assert replaced.getvalue() == ""
    quiet = logged("error")
    logging.getLogger("websockets.server").warning("said")
    assert quiet.getvalue() == ""


def test_only_commands_configure():
    """A program that uses c4bench as a library keeps its own handlers and levels."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if words := set(CONFIGURING.findall(path.read_text())):
            found[str(path.relative_to(PACKAGE))] = words
    assert found.pop("logs.py") == {"addHandler", "setLevel"}
    mains = ("agent/main.py", "cli/main.py", "inject/__main__.py", "lab/guest/init.py")
    assert found == {path: {"logs.configure"} for path in mains}


@pytest.mark.parametrize("words", [["master", "--state=x", "--log-level=loud"], ["lab", "shell", "--log-format=xml"]])
def test_an_unknown_level_or_format_is_refused(words, capsys):
    """The error lists the choices."""
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert re.search(r"invalid choice: '(loud|xml)' \(choose from ", capsys.readouterr().err)
