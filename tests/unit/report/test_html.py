import random
import re
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from c4bench.errors import UsageError
from c4bench.model.diagnosis import Syndrome
from c4bench.model.measurement import Clock, Outcome
from c4bench.record import Ledger, RunDirectory
from c4bench.record.artefacts import (
    DelayMatrices,
    DelayMatrix,
    Fabric,
    FabricHost,
    FabricLink,
    Faults,
    FaultTimeline,
    LinkLoads,
    LoadCase,
    Switch,
)
from c4bench.record.provenance import Environment, collect
from c4bench.report import render
from c4bench.report.again import repeat_run
from c4bench.resources import resource

SCENARIO = "tests/scenarios/c4p/test_ring.py::test_planned_ring"


def leaf_spine(leaves, spines, hosts_per_leaf=2):
    switches = [Switch(f"spine{s}", 2) for s in range(spines)] + [Switch(f"leaf{leaf}", 1) for leaf in range(leaves)]
    ends = [(f"leaf{leaf}", f"spine{s}") for leaf in range(leaves) for s in range(spines)]
    ends += [(f"h{h}/0", f"leaf{h // hosts_per_leaf}") for h in range(leaves * hosts_per_leaf)]
    both = ends + [(b, a) for a, b in ends]
    hosts = tuple(FabricHost(f"h{h}", (f"h{h}/0",)) for h in range(leaves * hosts_per_leaf))
    return Fabric(tuple(switches), hosts, tuple(FabricLink(a, b, 1e11, f"{a}>{b}") for a, b in both))


def loads(fabric, seed=1):
    rng = random.Random(seed)
    cases = ("ECMP", "C4P")
    return LinkLoads(tuple(LoadCase(case, {link.hop: rng.uniform(0, 1.5) for link in fabric.links}) for case in cases))


def matrix(size):
    nics = tuple(f"h{index}/0" for index in range(size))
    cells = tuple(tuple(None if i == j else 8e-11 * (4 if j == 1 else 1) for j in range(size)) for i in range(size))
    return DelayMatrices((DelayMatrix("before", nics, cells), DelayMatrix("during", nics, cells)))


HANG, SLOW = Syndrome.COMMUNICATION_HANG, Syndrome.COMMUNICATION_SLOW
FAULTS = Faults(
    (
        FaultTimeline("nic.down", "nic h5/0", HANG, 10.0, 10.01, 10.3, 10.5, 10.9, 12.0, "nic h5/0", True),
        FaultTimeline("link.loss", "path a>b", SLOW, 20.0, 20.1, correct=False),
    )
)  # fmt: skip


@pytest.fixture
def run(tmp_path):
    run = RunDirectory.create(tmp_path, "main")
    command = ["pytest", "--hosts", "soft roce"]
    run.write_provenance(
        collect(
            name="main", started_at="2031-03-04 09:12:31", command=command, seed=7, backend="softroce",
            topology="leaf-spine", clock="virtual",
        )
    )  # fmt: skip
    return run


@pytest.fixture
def full(run):
    ledger = Ledger(run, SCENARIO)
    ledger.measure("busbw_share", 0.98, "1", at_least=0.95)
    ledger.measure("alarm_s", 2.5, "s", at_most=2.0, fault="nic.down")
    ledger.measure("plan_s", 0.01, "s", at_most=1.0, clock=Clock.MACHINE)
    run.finish_scenario(SCENARIO, Outcome.FAIL, "alarm came late <b>&")
    fabric = leaf_spine(4, 4)
    run.save("fabric", fabric)
    ledger.save("link_loads", loads(fabric))
    ledger.save("faults", FAULTS)
    ledger.save("delay_matrix", matrix(8))
    return run


def page(run):
    return render(run.path).read_text()


def headings(text):
    return re.findall(r"<h2 id=\"(\w+)\"", text)


def test_every_kind_of_data_has_its_section(full):
    """A run with everything shows verdict, limits, fabric, faults, delays, tables and how to run it again, in order."""
    text = page(full)
    assert headings(text) == ["headlines", "fabric", "faults", "delays", "measurements", "timings", "again"]
    assert "<h1>Failed</h1>" in text


def test_what_figures_depend_on_is_on_the_page(run):
    """Versions that were recorded stand at the top of the page; of a run that recorded none, none do."""
    known = Environment(python="3.11.2", packages={"numpy": "2.4.6"}, kernel="7.3.4", rdma_core="44.0-2")
    for environment, shown in (known, True), (Environment(), False):
        run.write_provenance(replace(run.provenance(), environment=environment))
        facts = re.findall(r"<dt>(.+?)</dt><dd>(.+?)</dd>", page(run))
        digest = known.packages_digest[:10]
        assert (("Python", f"3.11.2, packages <code>{digest}</code>") in facts) == shown
        assert (("lab's kernel", "7.3.4") in facts) == shown
        assert (("rdma-core", "44.0-2") in facts) == shown


def test_a_link_is_replaced_and_not_followed(run, tmp_path):
    """What a link called `report.html` points to is left alone."""
    (tmp_path / "precious").write_text("mine")
    (run.path / "report.html").symlink_to(tmp_path / "precious")
    assert "<h1>" in page(run)
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (run.path / "report.html").is_symlink()


def test_sections_without_data_are_left_out(run):
    """A run that only counted something has no empty section."""
    Ledger(run, "s").measure("x", 1.0, "1", at_least=1)
    text = page(run)
    assert headings(text) == ["headlines", "measurements", "again"]
    assert "<h1>Passed</h1>" in text
    assert "1 of 1 limits met" in text


def test_a_miss_is_shown_as_missed(full):
    """What missed its limit, and what was never named, is said at the top and where it stands."""
    text = page(full)
    banner = text[text.index("<section") : text.index("</section>")]
    assert "2 of 3 limits met, 1 missed" in banner
    assert "<code>alarm_s</code> 2.5 s, limit ≤ 2 s" in banner
    assert "never named" in text
    assert '<span class="mark fail">missed</span>' in text


def test_an_unjudged_run_is_inconclusive(run):
    """A run without a single limit says so."""
    assert "<h1>Inconclusive</h1>" in page(run)
    assert "No measurement has a limit." in page(run)


def test_page_stands_alone(full):
    """The page loads nothing and runs nothing: no script, no link, no address, and colours for a dark screen."""
    text = page(full)
    assert not re.search(r"<script|<link|https?:|@import|url\(|src=|href=", text)
    assert "prefers-color-scheme: dark" in text


def test_text_from_the_run_is_escaped(full):
    """What a run recorded cannot become markup."""
    assert "alarm came late &lt;b&gt;&amp;" in page(full)
    evil = Ledger(full, "<i>s")
    evil.measure("<i>x", 1.0, "<i>", at_least=1, label="<i>")
    evil.save("delay_matrix", DelayMatrices((DelayMatrix("<i>l", ("<i>a", "<i>b"), ((None, 9.0), (1.0, None))),)))
    text = page(full)
    assert "<i>" not in text
    assert text.count("&lt;i&gt;") >= 8


def test_drawings_are_named_and_well_formed(full):
    """Every drawing is XML, and has a title and a description for those who cannot see it."""
    drawings = re.findall(r"<svg.*?</svg>", page(full), re.DOTALL)
    assert len(drawings) > 8
    for text in drawings:
        drawing = ET.fromstring(text)
        assert drawing.attrib["role"] == "img"
        assert [child.tag for child in drawing[:2]] == ["title", "desc"]
        assert all(child.text for child in drawing[:2])


def test_every_directed_link_is_drawn_once(full):
    """Each case shows every directed link, with its load to read."""
    text = page(full)
    assert text.count("leaf0 to spine0: ") == text.count("spine0 to leaf0: ") == 2


def test_page_stays_small(run):
    """The largest run that is still drawn makes a page below half a megabyte."""
    ledger = Ledger(run, SCENARIO)
    for index in range(250):
        ledger.measure("alarm_s", 1.0, "s", at_most=2.0, fault=f"nic.down/{index}")
    for index in range(6):
        fabric = leaf_spine(12, 12)
        run.save(f"fabric/s{index}", fabric)
        run.save(f"link_loads/s{index}", loads(fabric))
    run.save("faults", Faults(FAULTS.faults * 20))
    run.save("delay_matrix", matrix(48))
    assert render(run.path).stat().st_size < 500_000


def test_large_fabrics_are_ranked_not_drawn(run):
    """A fabric of a thousand links shows its links by load and no cloud of lines."""
    fabric = leaf_spine(32, 16)
    run.save("fabric", fabric)
    run.save("link_loads", loads(fabric))
    text = page(run)
    assert "Links by load under ECMP" in text
    assert "Link loads under ECMP" not in text


def test_page_is_the_same_for_the_same_run(full):
    """Rendering again gives the same bytes."""
    assert page(full) == page(full)


@pytest.mark.parametrize(
    ("command", "expected"),
    [(["pytest", "--c4-seed=3"], "pytest --c4-seed=3"), (["pytest", "a b"], "pytest 'a b' --c4-seed 7")],
)
def test_command_to_run_again_has_the_seed(command, expected):
    """The command shown carries the seed once and survives a shell."""
    made = collect(name="n", started_at="", command=command, seed=7, backend="", topology="", clock="virtual")
    assert repeat_run(made) == expected


def test_without_provenance_there_is_no_page(tmp_path):
    """A directory that no run has written is refused by name."""
    with pytest.raises(UsageError, match=r"run\.json is missing"):
        render(RunDirectory.create(tmp_path, "r").path)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first, second):
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read(theme):
    """Every text colour has the contrast WCAG 2.2 AA asks for (4.5) on every ground it stands on, light and dark."""
    css = resource("reports", "templates", "colours.css").read_text()
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", css.split(":root {")[theme + 1].split("}")[0]))
    pairs = [(ink, ground) for ink in ("ink", "quiet") for ground in ("page", "card", "shade")]
    pairs += [(tone, ground) for tone in ("pass", "fail", "inconclusive") for ground in ("card", f"{tone}-soft")]
    pairs += [("on-warm", f"h{level}") for level in (1, 2, 3)] + [("on-hot", f"h{level}") for level in (4, 5)]
    weak = {pair: round(contrast(*(colours[name] for name in pair)), 2) for pair in pairs}
    assert {pair: value for pair, value in weak.items() if value < 4.5} == {}


def test_a_large_campaign_is_a_small_page(run):
    """The page of 300 trials with ten figures each, and a timeline and a verdict of every trial, is below 2 MB."""
    trials = []
    for number in range(300):
        ledger = Ledger(run, f"campaign.trial[{number}]")
        for figure in range(10):
            ledger.measure(f"c4d.figure_{figure}_s", 0.5, "s", at_most=2.0, fault="nic.rate", trial=number)
        run.finish_scenario(f"campaign.trial[{number}]", Outcome.PASS)
        node = f"tests/scenarios/grading/test_campaign.py::test_trial[{number}]"
        run.event(0.0, "ended", scenario=f"campaign.trial[{number}]", node=node)
        trials.append(FaultTimeline("nic.rate", f"nic h{number}/0", SLOW, 1.0, 1.1, 1.3, 1.5, 1.9, 2.0, "nic", True))
    Ledger(run, "campaign").save("faults", Faults(tuple(trials)))
    size = len(render(run.path).read_bytes())
    assert 300_000 < size < 2_000_000, size


def test_rows_have_plain_words_and_a_command(run):
    """A figure's meaning stands beside its name, and its scenario's command under the table."""
    Ledger(run, "x.it").measure("c4d.alarm_s", 1.0, "s", at_most=2)
    run.event(0.0, "ended", scenario="x.it", node="tests/x.py::test_it")
    text = page(run)
    assert "<small>time from the onset of a fault to the alarm</small>" in text
    assert "<pre>pytest --hosts &#39;soft roce&#39; tests/x.py::test_it --c4-seed 7</pre>" in text


def test_only_virtual_time_promises_the_same_bytes(run):
    """Of a run on hosts the page does not say that a seed gives the same bytes, or the same run."""
    Ledger(run, "x.it").measure("c4d.alarm_s", 1.0, "s", at_most=2)
    assert "same bytes" in page(run)
    assert "gives the same run" in page(run)
    run.write_provenance(replace(run.provenance(), clock="machine"))
    assert "same bytes" not in page(run)
    assert "gives the same run" not in page(run)
