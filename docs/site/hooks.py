"""What mkdocs adds to the documents: files from the top of the repository, and references made from the code.

`reference/commands.md` is each command's `--help`, `reference/schemas.md` the JSON Schemas. Links from documents to the
repository's top lead to the pages here.
"""

import argparse
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from c4bench.cli import main

ROOT = Path(__file__).resolve().parents[2]
# Documents outside of docs/, and their pages.
COPIED = {
    "CONTRIBUTING.md": "repository/contributing.md",
    "SECURITY.md": "repository/security.md",
    "CHANGELOG.md": "repository/changelog.md",
    "faults/README.md": "repository/faults.md",
    "playbooks/README.md": "repository/playbooks.md",
}
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated and copied pages."""
    for source, page in COPIED.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    files.append(File.generated(config, "reference/schemas.md", content=schemas()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Lead links to files of the repository to their pages; such as have none become text."""
    source = next((old for old, new in COPIED.items() if new == page.file.src_uri), f"docs/{page.file.src_uri}")

    def replace(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = (ROOT / source).parent.joinpath(target).resolve()
        if not path.is_relative_to(ROOT):
            return found[0]
        name = path.relative_to(ROOT).as_posix()
        if name in COPIED:
            return f"]({_relative(COPIED[name], page)}{anchor})"
        if name.startswith("docs/"):
            wanted = name.removeprefix("docs/")
            wanted = f"{wanted}/README.md" if path.is_dir() else wanted
            return f"]({_relative(wanted, page)}{anchor})" if files.get_file_from_path(wanted) else found[0]
        return f"](#){{ title='{name} in the repository' }}" if path.exists() else found[0]

    return _LINK.sub(replace, markdown)


def _relative(wanted: str, page: Page) -> str:
    return "../" * page.file.src_uri.count("/") + wanted


def commands() -> str:
    """A page with the help of every command."""
    lines = [
        "# Commands",
        "",
        "Exit codes: 0 passed, 1 failed, 2 wrong input, 3 lab or host unhealthy, 4 inconclusive.",
    ]
    for name, command in _commands(main._parser()):  # noqa: SLF001
        lines += ["", f"## `{name}`", "", "```text", command.format_help().rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _commands(parent: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parent._subparsers._group_actions if parent._subparsers else ():  # noqa: SLF001
        for command in (action.choices or {}).values():
            yield command.prog, command
            yield from _commands(command)


def schemas() -> str:
    """A page with the fields of every JSON Schema."""
    lines = ["# File formats", "", "The JSON Schemas of `reports/schema`, for editors and other programs."]
    for path in sorted((ROOT / "reports/schema").glob("*.json")):
        schema = json.loads(path.read_text())
        lines += ["", f"## `{path.name}`"]
        for name, definition in sorted(schema.get("$defs", {}).items()):
            lines += ["", f"### {name}", "", inspect.cleandoc(definition.get("description", "")), ""]
            lines += _fields(definition)
    return "\n".join(lines) + "\n"


def _fields(definition: dict[str, Any]) -> Iterator[str]:
    properties = definition.get("properties", {})
    if not properties:
        return
    yield "| field | type | required |"
    yield "|---|---|---|"
    for name, field in properties.items():
        yield f"| `{name}` | {_type(field)} | {'yes' if name in definition.get('required', ()) else ''} |"


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return field["$ref"].rpartition("/")[2]
    if "anyOf" in field:
        return " or ".join(map(_type, field["anyOf"]))
    if "items" in field and isinstance(field["items"], dict):
        return f"list of {_type(field['items'])}"
    return str(field.get("type", "any"))
