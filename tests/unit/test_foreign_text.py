"""Text that others bring is shown, and neither obeyed nor believed."""

import re

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from c4bench import foreign_text

ANY = st.text(st.characters(), max_size=200)


@given(ANY)
def test_one_line_has_only_characters_that_print(text):
    """Whatever a host sends, a log or a terminal gets one line of printable text."""
    shown = foreign_text.one_line(text)
    assert shown.isprintable()
    assert shown.encode().decode() == shown


@given(ANY)
def test_lines_keep_their_breaks_and_nothing_else_that_a_terminal_obeys(text):
    """A traceback stays readable, and moves no cursor."""
    shown = foreign_text.lines(text)
    assert all(line.isprintable() for line in shown.replace("\t", "").split("\n"))
    assert shown.count("\n") == text.count("\n")


def test_what_does_not_print_is_written_as_its_escape():
    """An operator sees that something odd was there."""
    assert foreign_text.one_line("a\x1b[31mb\u202ec\nd\udc80") == r"a\x1b[31mb\u202ec\nd\udc80"


@given(st.text())
def test_a_line_of_json_prints_and_says_the_same(text):
    """What does not print is escaped within the strings."""
    line = foreign_text.json_line(msgspec.json.encode([text]))
    assert line.isprintable()
    assert msgspec.json.decode(line) == [text]


def test_a_long_text_is_cut_and_says_so():
    """A megabyte does not fill a log."""
    assert foreign_text.one_line("x" * 1000, 10) == "x" * 10 + "..."


@given(ANY)
def test_markdown_is_only_text(text):
    """No character that begins a link, an image, code, a cell or HTML is without its backslash."""
    unescaped = re.sub(r"\\[!-/:-@\[-`{-~]", "", foreign_text.markdown(text))
    assert not set(unescaped) & set("`*_{}[]()#|<>!&\\")
