"""Files in YAML and lists of hosts that are small and mean much: they are refused at once, in one line."""

import gc
import time

import pytest
from fuzz_targets.files import INVENTORY
from fuzzing import SPIN_S

from c4bench.agent.config import load as load_agent
from c4bench.cli.main import printed_lines
from c4bench.errors import UsageError
from c4bench.inventory import load as load_inventory
from c4bench.lab.topology_file import load as load_topology
from c4bench.workload import job_file

READERS = {
    "inventory": load_inventory,
    "topology": lambda path: load_topology(str(path)),
    "agent": load_agent,
    "job": lambda path: job_file.read(path, ()),
}


def merged(depth):
    """Mappings of which each merges the one before ten times: 10 to the power of `depth` keys in few bytes."""
    below = [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, depth)]
    return "\n".join(["a0: &a0 {key: 1}", *below])


SMALL = {
    "deep": "[" * 5000,
    "deep mapping": '{"a":' * 3000,
    "deep indentation": "- " * 3000,
    "merged aliases": merged(9),
    "alias in itself": "name: &a [*a]",
    "half a character": 'name: "\\ud800"',
}


def refused(read, path):
    """The one line with which it is refused, and how long that took (s of the processor).

    Other threads of the test process, and garbage that tests have left, do not count.
    """
    gc.disable()
    began_s = time.thread_time()
    with pytest.raises(UsageError) as raised:
        read(path)
    took_s = time.thread_time() - began_s
    gc.enable()
    (line,) = printed_lines(raised.value)
    assert line.isprintable()
    return line, took_s


@pytest.mark.attack("variant: YAML that is deep, or repeats itself")
@pytest.mark.parametrize("text", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("kind", READERS)
def test_small_yaml_that_means_much_is_refused_at_once(kind, text, tmp_path):
    """Deep nesting, aliases of aliases and half characters cost no reader more than a tenth of a second."""
    path = tmp_path / "x.yml"
    path.write_text(text)
    line, took_s = refused(READERS[kind], path)
    assert str(path) in line
    assert took_s < SPIN_S


@pytest.mark.attack("variant: a range of ten million hosts")
@pytest.mark.parametrize(
    "name", ["h[0:9999999]", "h[0:99][0:99][0:99]", "h[0:99999999999999999999]", "h[0:9:0]", "h[a:9]"]
)
def test_range_of_too_many_hosts_is_refused_at_once(name, tmp_path):
    """A name that stands for more hosts than an inventory may have, or for none, is refused with its line."""
    path = tmp_path / "hosts.yml"
    path.write_text(INVENTORY.decode().replace("h[0:3]", f'"{name}"'))
    line, took_s = refused(load_inventory, path)
    assert f"{path}:" in line
    assert "range" in line
    assert took_s < SPIN_S


@pytest.mark.attack("variant: many ranges of hosts")
def test_many_ranges_are_counted_together(tmp_path):
    """Ranges that are each short enough are refused where together they are more hosts than there may be."""
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {" + ", ".join(f'"{letter}[0:39999]": ' for letter in "abc") + "}}")
    line, _ = refused(load_inventory, path)
    assert "more than 100,000 names" in line


@pytest.mark.attack("variant: groups in groups that meet again and again")
def test_groups_that_meet_again_and_again_are_read_at_once(tmp_path):
    """Forty layers of two groups, each in both of the layer above, are read as fast as their lines."""
    layers = "".join(
        f"a{n}: {{children: {{a{n + 1}: , b{n + 1}: }}}}\nb{n}: {{children: {{a{n + 1}: , b{n + 1}: }}}}\n"
        for n in range(40)
    )
    path = tmp_path / "hosts.yml"
    path.write_text(layers + "a40: {hosts: {h0: {}}}\n")
    began_s = time.process_time()
    known = load_inventory(path)
    assert [host.name for host in known.hosts] == ["h0"]
    assert time.process_time() - began_s < 1.0
