"""Names follow docs/glossary.md."""

import ast
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def retired():
    """The words in the left column of the glossary's last table."""
    _, _, table = (REPOSITORY / "docs" / "glossary.md").read_text().partition("\n## Retired\n")
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    return {word.strip() for row in rows[2:] for word in row.split(",")}


def identifiers(tree):
    """Every name that a module defines: functions, classes, parameters, variables, attributes, import aliases."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.alias(asname=str(name)):
                yield name


def uses(words, package):
    """`file: identifier` for each definition of one of the words, module names included."""
    found = []
    for path in sorted(package.rglob("*.py")):
        names = [path.stem, *identifiers(ast.parse(path.read_text()))]
        found += [f"{path.relative_to(package)}: {name}" for name in names if name.strip("_").lower() in words]
    return found


def test_no_retired_word_is_an_identifier():
    """A word that the glossary has retired names nothing in the package."""
    words = retired()
    assert len(words) > 10
    assert uses(words, REPOSITORY / "c4bench") == []


def test_a_retired_word_is_noticed(tmp_path):
    """A module, function, parameter, variable or attribute by a retired name is listed."""
    (tmp_path / "heed.py").write_text("def settle(way):\n    self._told = [one for one in way]\n")
    expected = ["heed.py: heed", "heed.py: settle", "heed.py: way", "heed.py: _told", "heed.py: one"]
    assert sorted(uses({"heed", "settle", "way", "told", "one"}, tmp_path)) == sorted(expected)
