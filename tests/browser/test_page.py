"""The live page in a headless browser: it shows what the master knows, to everybody, by every means."""

import os
import re
from importlib.resources import files
from pathlib import Path

import pytest
from browser_page import DESKTOP, PHONE, sign_in

from c4bench.model.event import AgentMissing, HostReturned

SHOTS = os.environ.get("C4BENCH_SCREENSHOTS")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture
def page(browser, scene, request):
    """The page of somebody who has signed in; nothing may be reported to the browser's console."""
    name = request.node.name[:40].replace("[", ".").replace("]", "")
    made = sign_in(browser, scene, scene.token(name))
    yield made
    assert made.problems == []
    made.context.close()


def axe(page):
    """What axe-core finds against the rules of WCAG 2.2 AA and its best practices, by rule."""
    source = files("axe_playwright_python").joinpath("axe.min.js").read_text()
    session = page.context.new_cdp_session(page)
    session.send("Runtime.evaluate", {"expression": source})
    found = page.evaluate(f"() => window.axe.run(document, {{runOnly: {RULES}}})")
    return {each["id"]: [node["target"] for node in each["nodes"]] for each in found["violations"]}, found["passes"]


def test_it_shows_the_fabric(page):
    """Hosts, job, links, the slow NIC and its cells are on the page."""
    page.wait_for_selector("#job-detail:not([hidden])")
    assert page.locator("#hosts-table tbody tr").count() == 8
    assert page.locator("#jobs-table tbody tr").all_inner_texts()[0].split()[:3] == ["train", "steps", "8"]
    assert "nic h3/0 (tx)" in page.locator("#entries").inner_text()
    assert page.locator("#cells tbody tr").first.inner_text().split()[0] == "h3/0"
    assert page.locator("#links-list li").count() >= 16
    assert page.locator("#connection").inner_text() == "live"
    assert page.evaluate("document.getElementById('matrix').width") == 8


def test_a_tile_says_what_is_named_and_open(page):
    """Whoever opens the page reads first that C4D has named something in a job that runs."""
    page.wait_for_selector("#tiles div")
    first = page.locator("#tiles div").first
    assert first.locator("dt").inner_text() == "named and open"
    assert first.locator("dd.bad").inner_text() == "nic h3/0"


def test_the_delay_matrix_has_names(page):
    """Rows and columns of the matrix are labelled with the NICs that send and receive."""
    page.wait_for_selector("#job-detail:not([hidden])")
    nics = [f"h{number}/0" for number in range(8)]
    assert page.locator("#matrix-rows span").all_text_contents() == nics
    assert page.locator("#matrix-columns span").all_text_contents() == nics


def test_the_jobs_are_whole_on_a_phone(browser, scene):
    """Each figure of a job stands below its name on the screen of a phone; nothing has to be scrolled to."""
    page = sign_in(browser, scene, scene.token("phone-jobs"), viewport=PHONE)
    page.wait_for_selector("#jobs-table tbody tr")
    table, around = page.locator("#jobs-table"), page.locator("#jobs-table").locator("..")
    assert table.evaluate("node => node.scrollWidth") <= around.evaluate("node => node.clientWidth")
    cells = page.locator("#jobs-table tbody tr").first.locator("th, td")
    for index in range(cells.count()):
        box = cells.nth(index).bounding_box()
        assert box["x"] + box["width"] <= PHONE["width"]
        assert cells.nth(index).evaluate("node => getComputedStyle(node, '::before').content") not in ("none", '""')
    assert page.problems == []
    page.context.close()


def test_a_link_that_is_not_used_stands_first(page, scene):
    """A link that C4P avoids comes before the loaded ones, with its state, and in the summary."""
    hop = next(iter(scene.parts.paths.link_loads()))
    scene.call(lambda: scene.parts.paths.controller.health.avoid([hop], scene.now_s()))
    first = page.locator("#links-list li").first
    first.get_by_text("avoided").wait_for(timeout=3000)
    assert first.locator(".address").inner_text() == hop
    assert first.locator(".name").inner_text() == scene.parts.paths.named.names[hop]
    assert page.locator("#tiles div", has_text="links not in use").locator(".bad").inner_text() == "1"
    scene.call(lambda: scene.parts.paths.controller.health.reopen_due(scene.now_s() + 1e6))


def test_the_counted_load_stands_beside_the_planned_one(page, scene):
    """What switches counted on a link is on its row, as a share of its rate where that is known."""
    hop, load = next((hop, load) for hop, load in scene.parts.paths.link_loads().items() if load.rate_bps)
    scene.count({hop: 0.4 * load.rate_bps})
    row = page.locator("#links-list li", has_text=hop).first
    carries = re.compile("carries [34][0-9] % of 20 Gbit/s")  # as exact as the machine is punctual
    row.get_by_text(carries).wait_for(timeout=5000)
    assert row.locator(".at-once").inner_text() == "50 % if all sent at once"


def test_the_fabric_is_drawn(page, scene):
    """Each link and node is in the picture; what C4D suspects and what is missing is marked, and said in words."""
    picture = page.locator("#fabric-picture")
    page.wait_for_selector("#fabric-parts:not([hidden])")
    named = scene.parts.paths.named
    assert picture.locator("line").count() == len(named.links) == 32
    assert sorted(picture.locator(".node > text").all_text_contents()) == sorted(
        [f"h{n}" for n in range(8)] + ["leaf0", "leaf1"] + [f"spine{n}" for n in range(4)]
    )
    assert picture.locator("[data-state=named]").all_text_contents() == ["h3h3"]
    assert picture.locator("text.named").count() == 2
    assert "C4D suspects nic h3/0." in page.locator("#fabric-text").inner_text()


def test_a_missing_link_is_marked(page, scene):
    """A link that is missing has a mark in the picture, and its name stands beside it."""
    health, hop = scene.parts.paths.controller.health, "up:0>2"
    scene.call(lambda: health.mark_lost([hop], scene.now_s()))
    page.locator("#fabric-picture line.missing").wait_for(state="attached", timeout=3000)
    assert page.locator("#fabric-picture text.missing").all_text_contents() == ["✕"]
    assert "Missing: leaf0/up2 > spine2/down0." in page.locator("#fabric-text").inner_text()
    scene.call(lambda: health.mark_answered([hop], scene.now_s()))
    scene.call(lambda: health.reopen_due(scene.now_s() + 1e6))


def test_a_link_is_coloured_by_what_it_carries(page, scene):
    """A link that switches count is drawn by its share, and the words beside the picture name the busiest."""
    hop, load = next((hop, load) for hop, load in scene.parts.paths.link_loads().items() if load.rate_bps)
    scene.count({hop: 0.8 * load.rate_bps})
    page.locator("#fabric-picture line.high").wait_for(state="attached", timeout=5000)
    name = scene.parts.paths.named.names[hop]
    assert f"{name} carries most" in page.locator("#fabric-text").inner_text()
    told = page.locator("#fabric-picture line.high title").text_content()
    assert re.fullmatch(f"{re.escape(name)}: carries (6[5-9]|[78][0-9]|90) %", told)


def test_the_matrix_has_names_on_its_axes(page):
    """Each row and column of a small delay matrix has its NIC's name, in the order of the matrix."""
    page.wait_for_selector("#job-detail:not([hidden])")
    nics = [f"h{n}/0" for n in range(8)]
    assert page.locator("#matrix-rows span").all_inner_texts() == nics
    assert page.locator("#matrix-columns span").all_inner_texts() == nics
    tops = [span.bounding_box()["y"] for span in page.locator("#matrix-rows span").all()]
    assert tops == sorted(tops)
    box = page.locator("#matrix").bounding_box()
    assert box["y"] < tops[0] < tops[-1] < box["y"] + box["height"]


def test_what_happens_appears_by_itself(page, scene):
    """An event is on the page within two seconds, without a reload, and above the older ones."""
    scene.publish(AgentMissing(scene.now_s(), "h6", scene.now_s() - 5, "still"))
    page.locator("#entries li").first.get_by_text("h6").wait_for(timeout=2000)
    scene.publish(HostReturned(scene.now_s() + 0.1, "h6"))
    page.locator("#entries li").first.get_by_text("in service again").wait_for(timeout=2000)


def test_kinds_of_entries_can_be_hidden(page):
    """Without findings the timeline shows none; with them again it does."""
    box = page.get_by_label("findings")
    entry = page.locator("#entries li[data-kind=finding]", has_text="nic h3/0").first
    box.uncheck()
    entry.wait_for(state="hidden")
    box.check()
    entry.wait_for(state="visible")


def test_hosts_can_be_searched(page):
    """The table shows the hosts whose name has the text, and says so if there is none."""
    page.get_by_label("Show hosts with").fill("h3")
    assert page.locator("#hosts-table tbody tr").all_inner_texts()[0].startswith("h3")
    assert page.locator("#hosts-table tbody tr").count() == 1
    page.get_by_label("Show hosts with").fill("zz")
    assert page.get_by_text("No host has this in its name.").is_visible()


def test_the_keyboard_reaches_everything(page):
    """Tab comes first to the link past the navigation, then to every control, and each shows its focus."""
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "timeline"
    page.evaluate("document.activeElement.blur()")
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        if reached[-1] == "host-filter":
            break
    assert {"log", "train", "host-filter"} <= set(reached)


def test_the_job_is_chosen_by_keyboard(page):
    """Enter on a job's name follows that job, which the table then marks."""
    page.get_by_role("button", name="train").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#jobs-table tr[aria-current=true]")
    assert page.locator("#job-title").inner_text() == "Job train"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("device", "viewport"), [("desktop", DESKTOP), ("phone", PHONE)])
def test_it_is_accessible(browser, scene, accessible, device, viewport, scheme):
    """axe-core finds nothing, light and dark, wide and narrow, and nothing is cut off at the side."""
    page = sign_in(browser, scene, scene.token(f"{device}.{scheme}"), viewport=viewport, color_scheme=scheme)
    page.wait_for_selector("#job-detail:not([hidden])")
    page.wait_for_timeout(1200)
    violations, passes = axe(page)
    assert len(passes) > 20
    accessible(violations, f"{device}, {scheme}")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{device}-{scheme}.png", full_page=True)
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_form_is_accessible(browser, scene, accessible, scheme):
    """axe-core finds nothing on the sign-in form, also after a refusal, which is told."""
    page = browser.new_context(color_scheme=scheme, viewport=PHONE).new_page()
    page.goto(scene.address)
    assert page.get_by_role("alert").is_hidden()
    accessible(axe(page)[0], f"sign-in, {scheme}")
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for(state="visible")
    accessible(axe(page)[0], f"sign-in, refused, {scheme}")
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"form-{scheme}.png")
    page.context.close()


def test_an_ended_token_leads_back_to_the_form(browser, scene):
    """Once the token is revoked the page shows the sign-in form by itself."""
    page = sign_in(browser, scene, scene.token("ending"))
    scene.tokens.revoke("ending", scene.real_s())
    page.get_by_label("Token").wait_for(timeout=20000)
    page.context.close()


def test_a_contrast_too_low_is_noticed(page):
    """axe-core sees faint text, so that it would see it on the page."""
    page.evaluate("() => { document.getElementById('hosts-title').style.color = '#ccc'; }")
    assert "color-contrast" in axe(page)[0]
