import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.c4p.knowledge.atlas import Atlas, PathTrace
from c4bench.c4p.knowledge.path_knowledge import PathKnowledge
from c4bench.errors import UsageError
from c4bench.model.fabric import DEST_QP, Path

HOPS = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=3).map(tuple)
ANSWERS = st.dictionaries(
    st.tuples(st.sampled_from(["h0/0", "h1/0"]), st.sampled_from(["h2/0", "h3/0"]), st.integers(49152, 49160)), HOPS
)


def test_each_path_is_known_by_its_lowest_port():
    """Ports that take the same path are one path, under the lowest of them."""
    atlas = Atlas.from_answers({("s", "d", 9): ("a", "b"), ("s", "d", 7): ("a", "b"), ("s", "d", 8): ("a", "c")})
    assert atlas.paths("s", "d") == (Path(7, ("a", "b")), Path(8, ("a", "c")))


@pytest.mark.parametrize("silent", [("a", None), (None, None), (), ("a",)])
def test_silence_is_no_path(silent):
    """A port whose probes were not all answered is left out and counted."""
    atlas = Atlas.from_answers({("s", "d", 7): ("a", "b"), ("s", "d", 8): silent})
    assert atlas.paths("s", "d") == (Path(7, ("a", "b")),)
    assert atlas.incomplete == 1


def test_unknown_pairs_have_no_paths():
    """A pair that was never probed, or never answered, has no path; a probed one is still listed."""
    atlas = Atlas.from_answers([PathTrace("s", "d", 7, (None,))])
    assert atlas.paths("s", "d") == atlas.paths("d", "s") == ()
    assert atlas.pairs == (("s", "d"),)


@given(ANSWERS)
def test_json_round_trip(answers):
    """An atlas read back from its JSON is the same atlas, to the byte of its JSON."""
    atlas = Atlas.from_answers(answers)
    back = Atlas.from_json(atlas.to_json())
    assert back.to_json() == atlas.to_json()
    assert [back.paths(*pair) for pair in back.pairs] == [atlas.paths(*pair) for pair in atlas.pairs]
    assert back.incomplete == atlas.incomplete


@given(ANSWERS, st.randoms(use_true_random=False))
def test_order_of_answers_does_not_matter(answers, rng):
    """The same answers in any order give the same atlas."""
    shuffled = list(answers.items())
    rng.shuffle(shuffled)
    assert Atlas.from_answers(dict(shuffled)).to_json() == Atlas.from_answers(answers).to_json()


@pytest.mark.parametrize("data", [b"{}", b"nonsense", b'{"hops":[],"pairs":[["s","d",[[7,[5]]]]],"incomplete":0}'])
def test_a_damaged_document_is_refused(data):
    """What is not an atlas is refused with what would be one."""
    with pytest.raises(UsageError, match="not an atlas"):
        Atlas.from_json(data)


def test_an_atlas_says_if_its_ports_are_not_those_of_every_packet():
    """What switches hash is kept in the document where it is not the 5-tuple, of which nothing is written."""
    knowledge = PathKnowledge()
    knowledge.learn({("a/0", "b/0", 50000): ("leaf", "b")}, 0.0)
    assert b"hash" not in knowledge.to_json() + knowledge.atlas().to_json()
    knowledge.hash = DEST_QP
    assert PathKnowledge.from_json(knowledge.to_json()).hash == DEST_QP
    assert Atlas.from_json(knowledge.atlas().to_json()).hash == DEST_QP
