"""A headless browser, where the machine has one; tests are skipped where it has none."""

import pytest
from browser_page import CHROMIUM, start
from page_scene import PageScene

from c4bench.model.measurement import Clock


@pytest.fixture(scope="session")
def runner():
    """Playwright, if it and a Chromium are installed."""
    library = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (make browser)")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (apt-get install chromium-headless-shell)")
    with library.sync_playwright() as made:
        yield made


@pytest.fixture
def accessible(request):
    """`accessible(violations, page)`: axe-core found none; recorded where the run has a directory (`make browser`)."""

    def check(violations, page):
        if request.config.option.hosts:
            found = sum(map(len, violations.values()))
            measure = request.getfixturevalue("measure")
            measure("page.axe_violations", found, unit="1", equals=0, clock=Clock.NONE, page=page)
        assert violations == {}

    return check


@pytest.fixture(scope="session")
def scene(tmp_path_factory):
    """A page with eight hosts and a job in which a NIC became slow."""
    made = PageScene(tmp_path_factory.mktemp("browser"))
    made.advance(8.0)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def browser(runner, scene):
    """A browser for the tests of one scene."""
    made = start(runner, scene)
    yield made
    made.close()
