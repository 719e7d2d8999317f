import signal

import pytest
from fakes import NOQUEUE, TBF, nic_request, target

from c4bench.errors import UnhealthyError
from c4bench.inject import fault_session, interfaces
from c4bench.inject.actions import Run, Signal
from c4bench.inject.catalogue import load
from c4bench.inject.drivers import switch
from c4bench.inject.interfaces import difference
from c4bench.inject.registry import DRIVERS
from c4bench.inject.targets import SwitchTarget
from c4bench.model.fault import FaultRequest, SwitchPort

CATALOGUE = load()


def plan(fault, found, **parameters):
    spec, request = CATALOGUE.resolve(nic_request(fault, **parameters))
    made = DRIVERS[next(iter(spec.drivers.values()))](request, found)
    return [[" ".join(action.argv) for action in side] for side in (made.apply, made.revert)]


def test_a_shaped_nic_gets_its_exact_shaper_back():
    """The root keeps its kind and handle; the burst, which the kernel lists in ticks, is told in bytes again."""
    assert plan("nic.rate", target(), fraction=0.25) == [
        ["tc qdisc change dev h5n0 root handle 8019: tbf rate 2500000000bit burst 16384 limit 8388608"],
        ["tc qdisc change dev h5n0 root handle 8019: tbf rate 10000000000bit burst 16384 limit 8388608"],
    ]


def test_an_unshaped_nic_gets_a_shaper_and_loses_it():
    """The kernel's default root comes back by itself."""
    assert plan("nic.rate", target(NOQUEUE), fraction=0.25) == [
        ["tc qdisc add dev h5n0 root handle c4: tbf rate 2500000000bit burst 78125 limit 8388608"],
        ["tc qdisc del dev h5n0 root"],
    ]


@pytest.mark.parametrize("fault", ["nic.rate", "nic.loss", "nic.blackhole"])
def test_a_root_that_cannot_be_put_back_is_left_alone(fault):
    """A configured root of another kind is refused before anything is touched."""
    configured = NOQUEUE.replace("noqueue", "htb").replace('"0:"', '"1:"')
    with pytest.raises(UnhealthyError, match="own root qdisc htb"):
        plan(fault, target(configured))


def test_a_rate_fault_never_speeds_a_nic_up():
    """A NIC shaped below what the fault would leave is refused."""
    with pytest.raises(UnhealthyError, match="smaller fraction"):
        plan("nic.rate", target(TBF.replace("1250000000", "125000000")), fraction=0.25)


def test_loss_goes_under_the_shaper_so_that_the_rate_stays():
    """A shaper whose child is deleted drops everything until it is told its parameters again."""
    assert plan("nic.loss", target(), probability=0.01) == [
        ["tc qdisc add dev h5n0 parent 8019:1 netem limit 20000 loss 1.000000%"],
        [
            "tc qdisc del dev h5n0 parent 8019:1",
            "tc qdisc change dev h5n0 root handle 8019: tbf rate 10000000000bit burst 16384 limit 8388608",
        ],
    ]


def test_another_queue_below_the_shaper_is_left_alone():
    """A configured queue whose options are not known is refused before anything is touched, with what to do."""
    queue = f'{TBF[:-1]},{{"kind":"fq_codel","handle":"8020:","parent":"8019:1","options":{{}}}}]'
    with pytest.raises(UnhealthyError, match=r"own fq_codel below its shaper.*tc qdisc del dev h5n0 parent 8019:1"):
        plan("nic.loss", target(queue), probability=0.01)


NETEM = '{"kind":"netem","handle":"8020:",%s,"options":{"limit":3000,"delay":{"delay":0.005,"jitter":0}}}]'


@pytest.mark.parametrize("qdiscs", ["[" + NETEM % '"root":true', f"{TBF[:-1]}," + NETEM % '"parent":"8019:1"'])
def test_loss_goes_below_the_delay_of_a_long_link(qdiscs):
    """A port with a delay of its own, shaped or not, keeps it: the fault comes after it, and goes without a trace."""
    assert plan("nic.loss", target(qdiscs), probability=0.01) == [
        ["tc qdisc add dev h5n0 parent 8020:1 netem limit 20000 loss 1.000000%"],
        ["tc qdisc del dev h5n0 parent 8020:1"],
    ]


def test_receiving_passes_an_intermediate_device_and_the_redirection_comes_last():
    """The effect begins with the last command, and the first to be undone is the way in."""
    assert plan("nic.blackhole", target(), direction="rx") == [
        [
            "ip link add name c4ifb7 type ifb",
            "ip link set dev c4ifb7 addrgenmode none up",
            "tc qdisc add dev c4ifb7 root netem limit 20000 loss 100.000000%",
            "tc qdisc add dev h5n0 ingress",
            "tc filter add dev h5n0 ingress pref 1 protocol all matchall action mirred egress redirect dev c4ifb7",
        ],
        ["tc qdisc del dev h5n0 ingress", "ip link del dev c4ifb7"],
    ]


def test_somebody_elses_ingress_hook_is_shared_not_replaced():
    """Where a clsact qdisc is in place only our filter comes and goes."""
    clsact = TBF[:-1] + ',{"kind":"clsact","handle":"ffff:"}]'
    apply, revert = plan("nic.rate", target(clsact), direction="rx")
    assert not [command for command in apply if command.endswith("h5n0 ingress")]
    assert revert[0] == "tc filter del dev h5n0 ingress pref 1 protocol all matchall"


def test_a_filter_of_the_same_preference_is_refused():
    """Deleting by preference would take the other's filter along."""
    taken = target(
        TBF[:-1] + ',{"kind":"clsact","handle":"ffff:"}]', filter='[{"protocol":"all","pref":1,"kind":"u32"}]'
    )
    with pytest.raises(UnhealthyError, match="preference 1"):
        plan("nic.rate", taken, direction="rx")


def test_routes_and_addresses_are_restored_when_a_link_comes_up():
    """Configured routes, static IPv6 addresses and permanent neighbours are said again; the kernel's own are not."""
    assert plan("nic.down", target()) == [
        ["ip link set dev h5n0 down"],
        [
            "ip link set dev h5n0 up",
            "ip -6 address replace fd00::5/64 dev h5n0 nodad",
            "ip -4 route replace default via 10.1.1.254 dev h5n0 table 1101",
            "ip neighbour replace 10.1.1.254 lladdr 02:c4:01:01:00:fe dev h5n0 nud permanent",
        ],
    ]


def test_hardware_without_a_driver_is_refused_by_name(monkeypatch):
    """`tc` does nothing to RoCE in hardware, so pretending would be worse than refusing."""
    monkeypatch.setattr(interfaces, "hardware", lambda _: "mlx5_core")
    spec, request = CATALOGUE.resolve(nic_request("nic.loss"))
    with pytest.raises(UnhealthyError, match=r"h5/0 cannot have nic\.loss: no tool of the NIC drops RDMA packets; use"):
        fault_session.plan(spec, request)
    monkeypatch.setattr(interfaces, "hardware", lambda _: "bnxt_en")
    with pytest.raises(UnhealthyError, match=r"no driver for bnxt_en such as h5/0; .*: ethernet, rxe"):
        fault_session.plan(spec, request)


def test_actions_print_as_they_would_be_typed():
    """What `plan` shows can be pasted into a shell."""
    assert str(Run(("tc", "qdisc", "show"), "/run/netns/leaf0")) == "nsenter --net=/run/netns/leaf0 tc qdisc show"
    assert str(Run(("echo", "a b"))) == "echo 'a b'"
    assert str(Signal(17, 1, 0, signal.SIGSTOP)) == "kill -STOP 17"


def test_the_difference_names_what_is_lost_left_and_moved():
    """A residue can be read without the two listings at hand."""
    before = {"route": "a\nb\n", "qdisc": "x\ny"}
    assert difference(before, before) == ()
    assert difference(before, {"route": "b\na\n", "qdisc": "x\nz"}) == (
        "- qdisc: y",
        "+ qdisc: z",
        "~ route: in another order",
    )


@pytest.mark.parametrize(
    ("fault", "parameters", "netem"),
    [
        ("nic.blackhole", {}, "loss 100.000000%"),
        ("nic.corrupt", {"probability": 0.25}, "corrupt 25.000000%"),
        ("nic.delay", {"delay_s": 0.0025}, "delay 2500us"),
        ("nic.delay", {"delay_s": 0.0025, "jitter_s": 0.001}, "delay 2500us 1000us"),
        ("nic.reorder", {"probability": 0.2, "delay_s": 0.001}, "delay 1000us reorder 20.000000%"),
    ],
)
def test_each_impairment_has_its_own_words(fault, parameters, netem):
    """On packets that are sent, under the shaper, with a queue that holds what is delayed at the NIC's rate."""
    (apply,), _ = plan(fault, target(), direction="tx", **parameters)
    assert apply == f"tc qdisc add dev h5n0 parent 8019:1 netem limit 20000 {netem}"


def test_both_directions_take_effect_together():
    """What only prepares comes first; received packets are restored before sent ones."""
    apply, revert = plan("nic.loss", target(), direction="both", probability=0.01)
    assert apply[-2:] == [
        "tc filter add dev h5n0 ingress pref 1 protocol all matchall action mirred egress redirect dev c4ifb7",
        "tc qdisc add dev h5n0 parent 8019:1 netem limit 20000 loss 1.000000%",
    ]
    assert revert[0] == "tc qdisc del dev h5n0 ingress"


def test_a_flapping_link_has_the_rhythm_that_was_asked_for():
    """The plan of a link that is down, repeated."""
    spec, request = CATALOGUE.resolve(nic_request("nic.flap", period_s=2.0, duty=0.5, count=3))
    made = DRIVERS[next(iter(spec.drivers.values()))](request, target())
    assert (made.rhythm.period_s, made.rhythm.duty, made.rhythm.count) == (2.0, 0.5, 3)
    assert [" ".join(action.argv) for action in made.apply] == plan("nic.down", target())[0]


def test_an_address_that_is_lost_comes_back_with_its_label_and_routes():
    """Prefix, label and broadcast are as before, then the routes that went with the address."""
    apply, revert = plan("nic.gid", target())
    assert apply == ["ip -4 address del 10.1.1.1/24 dev h5n0"]
    assert revert[0] == "ip -4 address replace 10.1.1.1/24 dev h5n0 label h5n0"
    assert "ip -4 route replace default via 10.1.1.254 dev h5n0 table 1101" in revert
    wide = target(address=target().printed["address"].replace('"label"', '"broadcast": "10.1.1.255", "label"'))
    assert plan("nic.gid", wide)[1][0].endswith("label h5n0 broadcast 10.1.1.255")
    none = target(
        address=target()
        .printed["address"]
        .replace('"scope": "global", "local": "10.', '"scope": "host", "local": "10.')
    )
    with pytest.raises(UnhealthyError, match="h5/0 has 0 IPv4 addresses; this fault can restore exactly one"):
        plan("nic.gid", none)


def test_an_mtu_is_only_made_smaller():
    """It comes back to what it was; one that is not smaller would show nothing."""
    assert plan("nic.mtu", target(), mtu_bytes=1400) == [
        ["ip link set dev h5n0 mtu 1400"],
        ["ip link set dev h5n0 mtu 4200"],
    ]
    small = target(address=target().printed["address"].replace("4200", "1400"))
    with pytest.raises(UnhealthyError, match="has an MTU of 1400 bytes, no more than 1400; ask for a smaller one"):
        plan("nic.mtu", small, mtu_bytes=1400)


def on_port(name, address="10.0.0.3"):
    """A switch's port with its next hop."""
    return interfaces.InterfaceTarget(
        SwitchPort("leaf0", name, "/run/netns/leaf0"),
        3,
        target().printed | {"route": f"10.7.0.0/16 via {address} dev {name}\n", "neighbour": "", "address": "[{}]"},
    )


def test_a_switch_goes_down_with_all_its_ports():
    """All at the same moment; all links are up again before any route is restored, which may lead over two of them."""
    request = FaultRequest("switch.down", "leaf0", netns="/run/netns/leaf0")
    made = switch.switch_down(request, SwitchTarget((on_port("up0"), on_port("up1", "10.0.0.5"))))
    assert {action.netns for action in (*made.apply, *made.revert)} == {"/run/netns/leaf0"}
    assert [" ".join(action.argv) for action in made.apply] == [
        f"ip link set dev {name} down" for name in ("up0", "up1")
    ]
    assert [" ".join(action.argv) for action in made.revert] == [
        "ip link set dev up0 up",
        "ip link set dev up1 up",
        "ip -4 route replace 10.7.0.0/16 via 10.0.0.3 dev up0",
        "ip -4 route replace 10.7.0.0/16 via 10.0.0.5 dev up1",
    ]
    assert made.sudden == 2
    assert made.claims == ("link of up0 in /run/netns/leaf0", "link of up1 in /run/netns/leaf0")
    with pytest.raises(UnhealthyError, match="leaf0 has no port that is up; choose another switch"):
        switch.switch_down(request, SwitchTarget(()))


@pytest.mark.parametrize(
    ("fault", "parameters", "claims"),
    [
        ("nic.rate", {"direction": "tx"}, {"egress of h5n0"}),
        ("nic.rate", {"direction": "rx"}, {"ingress of h5n0"}),
        ("nic.loss", {"direction": "both", "probability": 0.1}, {"egress of h5n0", "ingress of h5n0"}),
        ("nic.down", {}, {"link of h5n0"}),
        ("nic.gid", {}, {"address of h5n0", "link of h5n0"}),
        ("nic.mtu", {"mtu_bytes": 1400}, {"MTU of h5n0"}),
    ],
)
def test_faults_claim_what_they_change(fault, parameters, claims):
    """Two that change the same part of an interface cannot be in force together; of different parts they can."""
    spec, request = CATALOGUE.resolve(nic_request(fault, **parameters))
    assert set(DRIVERS[next(iter(spec.drivers.values()))](request, target()).claims) == claims
