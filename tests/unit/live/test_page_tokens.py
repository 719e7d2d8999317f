"""Tokens: stored as hashes, valid until they end or are revoked."""

import hashlib
import stat

import pytest

from c4bench.errors import UsageError
from c4bench.live.credentials import FILE, TokenFile


def test_only_the_hash_is_stored(tmp_path):
    """The file has the SHA-256 of a token, not the token, and nobody else may read it."""
    token = TokenFile(tmp_path).create("ann", 100.0, 0.0)
    text = (tmp_path / FILE).read_text()
    assert token not in text
    assert hashlib.sha256(token.encode()).hexdigest() in text
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert len(token) >= 43


def test_a_token_is_known_until_it_ends(tmp_path):
    """A token names its holder before its end and nobody from then on; other tokens name nobody."""
    tokens = TokenFile(tmp_path)
    ann, bob = tokens.create("ann", 100.0, 0.0), tokens.create("bob", 50.0, 0.0)
    assert (tokens.holder(ann, 49.0), tokens.holder(bob, 49.0)) == ("ann", "bob")
    assert (tokens.holder(ann, 99.0), tokens.holder(bob, 50.0)) == ("ann", None)
    assert tokens.holder(ann + "x", 1.0) is tokens.holder("", 1.0) is None


def test_an_ended_token_leaves_the_file(tmp_path):
    """A name is free again, and the old hash is gone, when its token has ended."""
    tokens = TokenFile(tmp_path)
    tokens.create("ann", 10.0, 0.0)
    tokens.create("ann", 30.0, 20.0)
    assert [token.ends_s for token in tokens.stored(20.0)] == [30.0]
    assert (tmp_path / FILE).read_text().count("sha256") == 1


@pytest.mark.parametrize(
    ("act", "line"),
    [
        (lambda tokens: tokens.create("ann", 9.0, 1.0), "there is a token 'ann' already; revoke it first"),
        (lambda tokens: tokens.create("a b", 9.0, 1.0), "'a b' is no name for a token"),
        (lambda tokens: tokens.create("", 9.0, 1.0), "'' is no name for a token"),
        (lambda tokens: tokens.revoke("bob", 1.0), "there is no token 'bob'; there are ann"),
    ],
)
def test_bad_names_change_nothing(tmp_path, act, line):
    """A name that is taken, malformed or unknown is refused in a line that says what to do."""
    tokens = TokenFile(tmp_path)
    tokens.create("ann", 10.0, 0.0)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(UsageError, match="^" + line.replace("(", r"\(")):
        act(tokens)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_damaged_file_is_named(tmp_path):
    """A file that is not of tokens admits nobody and is named in the error."""
    (tmp_path / FILE).write_text("[{]")
    with pytest.raises(UsageError, match=FILE):
        TokenFile(tmp_path).holder("x", 0.0)
