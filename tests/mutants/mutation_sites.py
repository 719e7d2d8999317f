"""Where the code can be broken, and how: mutmut's operators, less what no test is meant to notice.

A site is a place at which one operator applies. Each site is as likely as any other, however many changes it allows.
"""

import random
from typing import NamedTuple

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

PACKAGES = ("c4d", "c4p", "collective", "inject", "steer", "wire", "control", "record")
# Declarations that only a type checker reads, what is said when all is lost anyway, and checks of the code by itself.
_DECLARED = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom, cst.Raise, cst.Assert)
_TYPES = {"cast", "TypeVar", "NewType", "ParamSpec"}
_TYPE_CHECKING = "TYPE_CHECKING"
_LOGS = {"_logger", "logging"}
# Arguments for people, the length check of zip, and an encoding, whose case does not matter.
_UNTESTED_ARGUMENTS = {"help", "description", "metavar", "strict", "encoding"}
# The number operator adds 1. No test is to tell a limit of 3600 s from one of 3601 s.
_SMALL = 10


class Mutant(NamedTuple):
    """One change of one file: `text` is the whole file with it, `was` and `now` the first line that differs.

    Its effect is on the lines `first` to `last`. They run at import if `at_import`.
    """

    path: str
    first: int
    last: int
    at_import: bool
    was: str
    now: str
    text: str


class Site(NamedTuple):
    """A node that one operator changes."""

    node: cst.CSTNode
    changes: list[cst.CSTNode]
    at_import: bool


def unnoticed(node):
    """Whether a part of the code is left as it is, with all in it: the one rule of what is no mutant."""
    if isinstance(node, cst.Arg):
        return bool(node.keyword and node.keyword.value in _UNTESTED_ARGUMENTS) or unnoticed(node.value)
    if isinstance(node, cst.Call):
        return _is_named(node.func, _TYPES) or _is_log(node.func)
    if isinstance(node, cst.If):
        return _is_named(node.test, {_TYPE_CHECKING})
    return isinstance(node, _DECLARED) or _is_prose(node)


def sites(module):
    """Every site of a parsed module, in the order of the text."""
    visitor = _Visitor()
    module.visit(visitor)
    return visitor.sites


def modules(root):
    """The modules that are mutated, by their paths from the repository's root."""
    return sorted(str(path.relative_to(root)) for name in PACKAGES for path in (root / "c4bench" / name).rglob("*.py"))


def sample(root, count, seed):
    """(mutants, sites): `count` mutants at different sites, fixed by seed and code; and how many sites."""
    chance = random.Random(seed)
    places = [(path, number) for path in modules(root) for number in range(len(sites(_parse(root, path))))]
    chance.shuffle(places)
    mutants = []
    for path, number in places:
        if len(mutants) == count:
            break
        mutants += _mutant(root, path, number, chance)
    return mutants, len(places)


def _mutant(root, path, number, chance):
    """One of the changes of a site; nothing where none of them is Python."""
    wrapper = MetadataWrapper(_parse(root, path), unsafe_skip_copy=True)
    site = sites(wrapper.module)[number]
    where = wrapper.resolve(PositionProvider)[site.node]
    for change in chance.sample(site.changes, len(site.changes)):
        text = wrapper.module.deep_replace(site.node, change).code
        if _is_python(text):
            was, now = _difference(wrapper.module.code, text)
            return [Mutant(path, where.start.line, where.end.line, site.at_import, was, now, text)]
    return []


class _Visitor(cst.CSTVisitor):
    def __init__(self):
        super().__init__()
        self.sites = []
        self._functions = 0
        self._bases = set()

    def on_visit(self, node):
        if unnoticed(node) or id(node) in self._bases:
            return False
        if isinstance(node, cst.ClassDef):
            self._bases |= {id(argument) for argument in (*node.bases, *node.keywords)}
        self._functions += isinstance(node, (cst.FunctionDef, cst.Lambda))
        for kind, operator in mutation_operators:
            if isinstance(node, kind) and not _is_large(node):
                changes = [change for change in operator(node) if _keeps_unnoticed(node, change)]
                self.sites += [Site(node, changes, not self._functions)] if changes else []
        return True

    def on_leave(self, original_node):
        self._functions -= isinstance(original_node, (cst.FunctionDef, cst.Lambda)) and not unnoticed(original_node)


def _keeps_unnoticed(node, change):
    """Whether a change leaves every part that is no mutant in place: a log text is not replaced by None either."""
    kept = {id(child) for child in change.children}
    return all(id(child) in kept for child in node.children if unnoticed(child))


def _is_prose(node):
    """Whether a string is for people: docstrings, help and error texts have spaces, names and arguments have none."""
    if isinstance(node, cst.ConcatenatedString):
        return _is_prose(node.left) or _is_prose(node.right)
    if isinstance(node, cst.FormattedString):
        return any(isinstance(part, cst.FormattedStringText) and " " in part.value.strip() for part in node.parts)
    return isinstance(node, cst.SimpleString) and " " in node.value


def _is_large(node):
    return isinstance(node, cst.Integer | cst.Float) and node.evaluated_value >= _SMALL


def _is_log(function):
    return isinstance(function, cst.Attribute) and _is_named(function.value, _LOGS)


def _is_named(node, names):
    return isinstance(node, cst.Name) and node.value in names


def _parse(root, path):
    return cst.parse_module((root / path).read_text())


def _is_python(text):
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _difference(before, after):
    """The first line that differs, as it was and as it is."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    return next(((was.strip(), now.strip()) for was, now in pairs if was != now), ("", ""))
