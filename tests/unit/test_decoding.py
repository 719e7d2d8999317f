"""Whatever is wrong with somebody else's text, one kind of error says so in one line."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.decoding import DecodingError, from_json, from_msgpack, from_yaml, json_in, whole_number


class Point(msgspec.Struct):
    """What is asked for."""

    x: int


BAD = [b"", b"\xff", b"[" * 100_000, b'{"x": "a"}', b"x: 2001-13-45", b'{"x": 1e999}', b"\x81\xa1x\xcb", b"!!python/x"]


@pytest.mark.parametrize("decode", [from_json, from_msgpack, from_yaml, json_in])
@pytest.mark.parametrize("data", BAD, ids=range(len(BAD)))
def test_bad_data_is_one_kind_of_error(decode, data):
    """Text that is none, deep nesting, and dates that do not exist are no traceback."""
    with pytest.raises(DecodingError) as raised:
        decode(data, Point)
    assert str(raised.value).isprintable()


@given(st.binary(max_size=100))
def test_any_bytes_decode_or_are_refused(data):
    """No bytes raise anything else."""
    for decode in (from_json, from_msgpack, from_yaml, json_in):
        with contextlib.suppress(DecodingError):
            decode(data, object)


def test_a_line_before_the_json_of_a_command_is_passed_over():
    """A warning that a command prints first does not hide its answer."""
    assert json_in("Warning: old driver\n[1, 2]\n", list[int]) == [1, 2]


def test_a_line_that_begins_as_json_does_is_passed_over():
    """`[WARN]` before the answer is no answer, and of many such lines only some are tried."""
    warnings = "[WARN] old driver\n{debug}\n"
    assert json_in(f"{warnings}[1,\n2]\n", list[int]) == [1, 2]
    with pytest.raises(DecodingError):
        json_in(warnings * 1000 + "[1]", list[int])


def test_a_yaml_error_states_its_line():
    """The user is sent to the line."""
    with pytest.raises(DecodingError) as raised:
        from_yaml("a: 1\nb: [")
    assert raised.value.line in (2, 3)


@pytest.mark.parametrize("text", ["", "9" * 5000, "1.5", "-", "1e9", "\u00b2", "nan"])
def test_a_number_of_other_digits_is_refused(text):
    """A counter of 5,000 digits is no traceback."""
    with pytest.raises(DecodingError):
        whole_number(text)


def test_a_whole_number_is_read():
    """What is a number is one."""
    assert (whole_number(" -42\n"), whole_number("18446744073709551615")) == (-42, 2**64 - 1)


@pytest.mark.parametrize(
    "text",
    ["[" * 5000, "- " * 5000, "a: &a [*a]", 'a: "\\ud800"', "a: &a [1]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]"],
    ids=["flow", "block", "itself", "surrogate", "aliases"],
)
def test_yaml_that_means_more_than_it_says_is_refused(text, monkeypatch):
    """Depth, aliases in themselves or of more nodes than there may be, and half characters are errors in one line."""
    monkeypatch.setattr("c4bench.decoding._MOST_YAML_NODES", 20)
    with pytest.raises(DecodingError) as raised:
        from_yaml(text)
    assert str(raised.value).isprintable()
    assert raised.value.line


def test_aliases_and_merged_keys_are_read():
    """What inventories use of YAML is what it was."""
    assert from_yaml("a: &a {x: 1}\nb: {<<: *a, y: [*a]}") == {"a": {"x": 1}, "b": {"x": 1, "y": [{"x": 1}]}}
