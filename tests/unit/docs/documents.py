"""The code blocks of the documents, and what a comment before a block says about it.

`<!-- run: WHERE -->` says where a console block can run: `lab`, or `slow` for what takes a minute. Others run anywhere.
`<!-- file: NAME -->` says that a block is a file, which the page's commands need.
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "faults/README.md",
    ROOT / "CONTRIBUTING.md",
]
_FENCE = re.compile(r"^(?:<!-- (\w+): (\S+) -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, its text, and what the comment before it says."""

    page: Path
    language: str
    text: str
    key: str
    value: str

    @property
    def name(self):
        return self.page.relative_to(ROOT).as_posix()


class Step(NamedTuple):
    """A command of a console block and the output shown for it."""

    command: str
    shown: str


def blocks(language):
    """Every fenced block of a language, in all documents."""
    return [
        Block(page, kind, text, key or "", value or "")
        for page in PAGES
        for key, value, kind, text in _FENCE.findall(page.read_text())
        if kind == language
    ]


def files(page):
    """The files of a page by name, but for those of the repository, which it shows."""
    found = {value: text for key, value, _, text in _FENCE.findall(page.read_text()) if key == "file"}
    return {name: text for name, text in found.items() if not (ROOT / name).exists()}


def steps(block):
    """The commands of a console block, each with the output that follows it."""
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert parts[0] == "", f"{block.name}: a console block begins with a command"
    return [Step(*part.partition("\n")[::2]) for part in parts[1:]]


def agrees(shown, printed):
    """Whether output is as a document shows it: `...` stands for anything, within a line and for lines."""
    pattern = "".join(
        ".*" if part == "..." else r"\s+" if part.isspace() else re.escape(part)
        for part in re.split(r"(\.\.\.|\s+)", shown.strip())
    )
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def mentioned(program):
    """(page, command) of every indented line, and every command of a console block, that begins with this program."""
    pattern = re.compile(rf"^(?:    |\$ )(?:\.venv/bin/)?({program} .*)$", re.MULTILINE)
    texts = [(page, page.read_text().replace("\\\n", " ")) for page in PAGES]
    return [(page.relative_to(ROOT).as_posix(), line) for page, text in texts for line in pattern.findall(text)]
