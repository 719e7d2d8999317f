"""Plans on fabrics that have lost links, or half of their rate, against what is left at best."""

import pytest

from tools.bench.degraded import Size, draw, fractions

SMALL = Size(hosts=16, hosts_per_leaf=4, spines=4)


@pytest.mark.parametrize(
    ("size", "links_down", "seeds", "kind"),
    [
        (SMALL, 0.2, (100,), "down"),
        pytest.param(SMALL, 0.2, (100,), "half", marks=pytest.mark.nightly),
        *(
            pytest.param(Size(), part, range(100, 110), kind, marks=pytest.mark.nightly)
            for part in (0.05, 0.1, 0.2)
            for kind in ("down", "half")
        ),
    ],
)
def test_the_worst_job_gets_what_a_degraded_fabric_can_carry(size, links_down, seeds, kind):
    """With links of several leaves degraded, the plan is within 2 % of the optimum; ECMP and an old plan are not."""
    for seed in seeds:
        found = fractions(draw(seed, links_down, kind, size))
        assert 0.98 <= found["planned"] <= 1 + 1e-6, (seed, found)
        assert max(found["static"], found["ecmp"]) < 0.95, (seed, found)
        assert found["sprayed"] <= 1 + 1e-6
