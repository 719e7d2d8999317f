import pkgutil
import re
from pathlib import Path

import pytest

from c4bench.record import artefacts
from c4bench.report import charts, html
from c4bench.report.html import SECTIONS
from c4bench.resources import resource

TEMPLATES = resource("reports", "templates")


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_a_section_has_a_template_that_uses_its_content(section):
    """Every registered section has a template of its name that draws its content."""
    template = Path(TEMPLATES, "sections", f"{section.name}.html.j2")
    assert template.exists(), f"write {template}"
    assert re.search(rf"\b{section.name}\b", template.read_text()), f"{template} does not use {section.name!r}"


def test_every_artefact_has_a_section():
    """Every artefact that the table in `record.artefacts` promises to draw is drawn by a section, and no other."""
    documented = set(re.findall(r"^\| `(\w+)`", artefacts.__doc__, re.MULTILINE))
    drawn = {name for section in SECTIONS for name in section.artefacts}
    assert drawn == documented, f"add to the table or to SECTIONS: {sorted(drawn ^ documented)}"


def test_every_chart_module_is_used():
    """A chart module that the page does not import is not drawn: register it."""
    missing = [module.name for module in pkgutil.iter_modules(charts.__path__) if not hasattr(html, module.name)]
    assert not missing, f"add a Section in report/html.py for {missing}"


def test_every_section_template_is_registered():
    """A template without a section is never rendered: register it."""
    templates = {path.name.removesuffix(".html.j2") for path in Path(TEMPLATES, "sections").glob("*.html.j2")}
    assert templates == {section.name for section in SECTIONS}
