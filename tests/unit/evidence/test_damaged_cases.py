"""Cases that were cut or mixed, or have lines twice: an answer, or a reason, and nothing that a terminal obeys."""

import gzip

from case_truths import CASES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from property_examples import examples

from tools.cases import answer

FILES = sorted(path for path in CASES.rglob("*") if path.is_file())
HOSTILE = ["\x1b]0;owned\x07", "\u202e", "<script>alert(1)</script>", "\x00", "\r", "9" * 400, "{{7*7}}", "$(reboot)"]


def content(path):
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


@st.composite
def damaged(draw):
    """The name of a case's file, and its bytes after one to three changes."""
    path = draw(st.sampled_from(FILES))
    lines = content(path).split(b"\n")
    for change in draw(st.lists(st.sampled_from(["cut", "twice", "mixed", "lost", "hostile"]), min_size=1, max_size=3)):
        at = draw(st.integers(0, max(0, len(lines) - 1)))
        if change == "cut":
            rest = b"\n".join(lines)
            lines = rest[: draw(st.integers(1, max(1, len(rest))))].split(b"\n")
        elif change == "twice":
            lines[at:at] = lines[at : at + draw(st.integers(1, 5))]
        elif change == "mixed":
            lines[at:at] = content(draw(st.sampled_from(FILES))).split(b"\n")[:40]
        elif change == "lost":
            del lines[at : at + draw(st.integers(1, 3))]
        elif lines[at : at + 1]:
            where = draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:where] + draw(st.sampled_from(HOSTILE)).encode() + lines[at][where:]
    return path.name, b"\n".join(lines)


@settings(max_examples=examples(30, 2000), deadline=None, suppress_health_check=list(HealthCheck))
@given(file=damaged(), option=st.sampled_from([[], ["--explain"], ["--json"], ["--reasons", "slurm"]]))
def test_a_damaged_case_has_an_answer(tmp_path_factory, file, option):
    """Whatever is left of a case is judged or refused, with the file and a reason; no control character is printed."""
    name, data = file
    folder = tmp_path_factory.mktemp("case")
    path, page = folder / name, folder / "page.html"
    path.write_bytes(data)
    code, said = answer("detect", "--html", str(page), *option, str(path))
    assert code in {0, 2, 4}
    assert all(line.isprintable() for line in said.split("\n"))
    if code == 2:
        refused = [line for line in said.split("\n") if line.startswith("c4bench: ")]
        assert refused
        assert all(name in line and line.rpartition(": ")[2] for line in refused)
    html = page.read_text() if page.exists() else ""
    assert "<script" not in html
    assert all(line.isprintable() or not line for line in html.replace("\t", "").split("\n"))
