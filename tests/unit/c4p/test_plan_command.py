import msgspec
import pytest
import yaml

from c4bench.cli.main import main
from tools.bench.fabrics import clos

FABRIC = clos(8, 4, 4)
PAIRS = [(f"h{n}/0", f"h{n + 4}/0") for n in range(4)]


@pytest.fixture
def run(tmp_path, capsys):
    """Plan flows under conditions; the exit code, what was printed and what was remarked."""

    def run(flows, *options, **conditions):
        (tmp_path / "flows.yml").write_text(yaml.safe_dump(flows))
        (tmp_path / "conditions.yml").write_text(yaml.safe_dump(conditions))
        (tmp_path / "atlas.json").write_bytes(FABRIC.atlas(PAIRS).to_json())
        files = ["--atlas", str(tmp_path / "atlas.json"), "--conditions", str(tmp_path / "conditions.yml")]
        code = main(["plan", str(tmp_path / "flows.yml"), *files, *options])
        return code, *capsys.readouterr()

    return run


def flow(name, source, destination, demand_bps=10e9):
    return {"id": name, "job": "a", "source": source, "destination": destination, "demand_bps": demand_bps}


def test_the_answer_is_json(run):
    """Each flow's path, ports and share, in the order asked for."""
    code, out, err = run([flow("b", *PAIRS[1]), flow("a", *PAIRS[0])], "--json")
    placed = msgspec.json.decode(out)
    assert (code, err) == (0, "")
    assert [one["flow"] for one in placed] == ["b", "a"]
    assert placed[0]["source"] == "h1/0"
    assert placed[0]["share"] == 1.0
    assert placed[0]["path"]["hops"][1] != placed[1]["path"]["hops"][1]


def test_what_cannot_be_given_is_said(run):
    """A flow without a route and a link that is asked for too much are lines for people, and the plan is still made."""
    flows = [flow("a", *PAIRS[0]), flow("b", *PAIRS[0]), flow("lost", "h0/0", "h9/0")]
    capacities = dict.fromkeys(FABRIC.atlas(PAIRS).hops, 10e9)
    code, out, err = run(flows, "--exact", capacities=capacities)
    assert code == 0
    assert "lost: h0/0 > h9/0 port 0 share 0 via ECMP" in out
    assert "flow lost has no route from h0/0 to h9/0 and is left to ECMP: the pair is not in the atlas" in err
    assert "hop in:h0/0>0 is asked for 20 Gbit/s and has 10" in err
    assert "worst link load 2; no plan has less than 2" in err


def test_connections_with_too_few_qps_for_thin_links_are_named(run):
    """Over uplinks at half the NICs' rate four QPs are too few and eight are not; over equal links one is no remark."""
    flows = [flow(f"x.{qp}", *PAIRS[0], 1e9) for qp in range(4)] + [flow(f"y.{qp}", *PAIRS[1], 1e9) for qp in range(8)]
    capacities = {hop: 5e9 if hop.startswith("up") else 10e9 for hop in FABRIC.atlas(PAIRS).hops}
    assert run(flows, capacities=capacities)[2].splitlines() == [
        "connection x of 4 QPs may cross links thinner than its NICs: 8 QPs fill them"
    ]
    assert run(flows[:1], capacities=dict.fromkeys(capacities, 10e9))[2] == ""


def test_conditions_with_a_mistake_are_refused(run):
    """A file that is not what it should be is named, with the place."""
    code, _, err = run([flow("a", *PAIRS[0])], capacities="fast")
    assert code == 2
    assert "conditions.yml" in err
    assert "capacities" in err
