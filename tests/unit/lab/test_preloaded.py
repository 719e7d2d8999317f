"""What the lab loads once before it forks hosts."""

from importlib.util import find_spec

from c4bench.lab.guest import supervisor
from c4bench.workload.programs import NAMES


def test_every_module_that_is_loaded_early_exists():
    """A renamed module would keep every lab with agents from booting."""
    names = [*supervisor._LATE, *(f"workload.{name}" for name in NAMES)]
    assert [name for name in names if find_spec(f"c4bench.{name}") is None] == []
