"""First light in the lab: what hardware will be asked, asked of rxe, and of NICs that look like a ConnectX."""

import msgspec
import pytest
from test_catalogue import CATALOGUE, of

from c4bench import remote
from c4bench.inject.first_light import first_light
from c4bench.model.fault import TargetKind
from c4bench.model.measurement import Clock

pytestmark = [pytest.mark.needs("disruptive", "root"), pytest.mark.nightly]
LEASE_S = 20.0
# The first is seen in the traffic of a job, and this link is idle; the second reaches further than a link.
LEFT_OUT = {"nic.qos", "nic.pause_storm"}


def test_each_fault_of_a_nic_is_tried_once(nic_hosts, place, injector, inventory, measure):
    """What the NIC can have is seen and leaves nothing, the rest is impossible, and the file names no host."""
    where = f"{nic_hosts[0].name}/0"
    names = [*(host.name for host in inventory.hosts), *inventory.switches]
    lines = []
    file = first_light(
        injector,
        [(where, place(where))],
        lambda host: remote.connect(host, inventory.access[host]),
        lambda host: inventory.access[host].python,
        names,
        LEASE_S,
        lines.append,
        last_nic=True,
    )
    (tried,) = file.tried.values()
    outcomes = {one.fault: one.outcome for one in tried}
    nics = {name: spec for name, spec in CATALOGUE.items() if spec.target is TargetKind.NIC}
    (kind,) = {one.hardware for one in tried if one.hardware}
    possible = set(of(TargetKind.NIC)) if kind == "rxe" else {name for name in nics if kind in nics[name].drivers}
    seen, impossible = (
        {fault for fault, outcome in outcomes.items() if outcome == word} - LEFT_OUT for word in ("seen", "impossible")
    )
    assert (seen, impossible) == (possible - LEFT_OUT, nics.keys() - possible - LEFT_OUT), lines
    (knobs,) = file.knobs.values()
    assert "" in knobs.values(), knobs
    text = msgspec.json.encode(file).decode()
    measure("first_light.tried", len(tried), equals=len(nics), clock=Clock.NONE)
    assert not [host.name for host in inventory.hosts for word in (f'"{host.name}/', f"{host.name} ") if word in text]
