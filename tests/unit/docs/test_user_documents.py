"""The documents for users stay short, and tell results, not the notebook that they come from."""

import re

import pytest
from documents import ROOT

WORDS, DESIGN_WORDS = 25_000, 2_500
NOT_FOR_USERS = re.compile(r"docs/(adr|reference)/|docs/(glossary|c4d)\.md")
USERS = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if not NOT_FOR_USERS.match(page.relative_to(ROOT).as_posix())
]
# What commands write, and commands themselves, may have numbers of seeds.
NO_PROSE = re.compile(r"<!-- (\w+):begin -->.*?<!-- \1:end -->|^```.*?^```$|^    .*?$", re.MULTILINE | re.DOTALL)
SEEDS = re.compile(r"\bseeds?[ =:]+(?:\w+ )?(?:\d[\d,]*\d|\d)", re.IGNORECASE)


def seeds(text):
    """The numbers of seeds that the prose of a document names."""
    return SEEDS.findall(NO_PROSE.sub("", text))


def test_the_documents_are_read_in_an_evening():
    """README and docs have 25,000 words at most, without decisions, glossary, reference and C4D's design."""
    words = {page.relative_to(ROOT).as_posix(): len(page.read_text().split()) for page in USERS}
    assert {"README.md", "docs/figures.md", "docs/howto/page.md"} <= words.keys()
    assert sum(words.values()) <= WORDS, sorted(words.items(), key=lambda item: -item[1])


def test_the_design_of_c4d_is_short():
    """An engineer can read it before lunch, and write C4D again from it."""
    assert 1_000 < len((ROOT / "docs" / "c4d.md").read_text().split()) <= DESIGN_WORDS


@pytest.mark.parametrize("page", USERS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_prose_names_no_seeds(page):
    """A result says of how many trials it is; which seeds they had is in run directories."""
    assert seeds(page.read_text()) == []


def test_a_seed_in_prose_is_noticed():
    """Numbers of seeds are found in sentences and tables, and not in commands, code and generated parts."""
    assert seeds("with seed 7, and the seeds 10,701 to 10,708") == ["seed 7", "seeds 10,701"]
    assert seeds("| seeds below 10,000 | `--c4-seed 2` |") == ["seeds below 10,000", "seed 2"]
    assert seeds("three seeds, each 24 trials") == []
    assert seeds("    make soak SEEDS=1\n```yaml\nseed: 1\n```\n<!-- a:begin -->\nseed 1\n<!-- a:end -->\n") == []
