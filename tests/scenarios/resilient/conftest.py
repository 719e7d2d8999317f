"""Fixtures: ranks that run trials, and the checks of a trial."""

import msgspec
import pytest

from c4bench import remote
from c4bench.workload.jobs import gpu_job, job, place
from c4bench.workload.trials import Account

PATIENCE_S = 120.0
# A port that goes down forgets its neighbours, the permanent ones too.
BLINK = """
known=$(ip neighbour show dev {port} nud permanent | sed 's/lladdr/dev {port} lladdr/; s/PERMANENT/nud permanent/')
ip link set {port} down; sleep {seconds}; ip link set {port} up
echo "$known" | sed 's/^/neighbour replace /' | ip -batch -
"""


class Ranks:
    """The test's hold on the ranks of a `trials` job."""

    def __init__(self, cluster, spec, clocks):
        self.spec = spec
        self._clocks = clocks
        self.size = len(spec.members)
        self._cluster = cluster
        self._number = 0
        self._given = False
        cluster.start(spec)

    @property
    def clock_error_s(self):
        """How much a time in an account may be off."""
        return self._clocks.error_s(*(member.host for member in self.spec.members))

    def close(self):
        self._cluster.stop(self.spec.id)

    def give(self, trial):
        """Have every rank begin, and wait until all are connected; an earlier trial that nobody took is over first."""
        if self._given:
            self.take()
        self._exchange("trial", msgspec.msgpack.encode(trial))
        self._exchange("ready", b"")
        self._given = True

    def take(self):
        """Every rank's account, its times on our clock."""
        answers = self._exchange("ended", b"")[: self.size]
        self._number += 1
        self._given = False
        told = [msgspec.msgpack.decode(answer, type=Account) for answer in answers]
        return [self._ours(member.host, each) for member, each in zip(self.spec.members, told, strict=True)]

    def __call__(self, trial):
        self.give(trial)
        return self.take()

    def _ours(self, host, account):
        def ours(spans):
            return tuple((self._clocks.ours(host, began), self._clocks.ours(host, ended)) for began, ended in spans)

        times = {"spans": ours(account.spans), "agreed": ours(account.agreed)}
        return msgspec.structs.replace(account, error_s=self._clocks.ours(host, account.error_s), **times)

    def _exchange(self, what, payload):
        return self._cluster.exchange(
            self.spec.id, f"{what}/{self._number}", self.size, self.size + 1, payload, PATIENCE_S
        )


@pytest.fixture(scope="module")
def start(cluster, clocks, pytestconfig, request):
    """Start ranks on hosts, with parameters of `trials`; they end with the module, whose name their jobs have.

    With `ranks_per_host` each host has so many, with a GPU each.
    """
    made = {}
    module = request.module.__name__.rpartition(".")[2].removeprefix("test_")

    def begin(hosts, ranks_per_host=1, **parameters):
        key = (hosts, ranks_per_host, *sorted(parameters.items()))
        if key not in made:
            name = f"{module}{len(made)}"
            seed = pytestconfig.option.c4_seed
            if ranks_per_host > 1:
                spec = gpu_job(name, "trials", hosts, ranks_per_host, seed=seed, **parameters)
            else:
                spec = job(name, "trials", place(hosts), seed=seed, **parameters)
            made[key] = Ranks(cluster, spec, clocks)
        return made[key]

    yield begin
    for ranks in made.values():
        ranks.close()


@pytest.fixture
def every_host(rdma_hosts):
    """All hosts there are, where each has several NICs."""
    if min(len(host.nics) for host in rdma_hosts) < 2:
        pytest.skip("one-nic: every host needs two NICs; try --c4-topology planes-2 or rails-8")
    return rdma_hosts


@pytest.fixture
def several_nics(request, every_host):
    """As many of them as the scenario needs."""
    return every_host[: request.node.get_closest_marker("needs").kwargs["hosts"]]


@pytest.fixture
def port_towards(inventory):
    """The switch's port that a NIC is cabled to, in words."""

    def find(nic):
        for switch in inventory.switches:
            for address, port in neighbours(inventory, switch).items():
                if address == nic.address:
                    return f"{switch}/{port}"
        return pytest.skip(f"unsupported: no switch knows {nic.name} as a neighbour")

    return find


@pytest.fixture
def uplinks(inventory, hosts):
    """The ports of the first switch that lead to other switches, in words."""
    switch = inventory.switches[0]
    ours = {nic.address for host in hosts for nic in host.nics}
    found = neighbours(inventory, switch).items()
    return sorted(f"{switch}/{port}" for address, port in found if address not in ours)


@pytest.fixture
def blink(inventory):
    """Switch a switch's port off and, so many seconds later, on again, in one command on the switch itself."""

    def switch_off(at, seconds):
        switch, port = at.split("/")
        with remote.connect(switch, inventory.access[switch]) as connection:
            there = inside(inventory, switch)
            connection.run([*there, "sh", "-c", BLINK.format(port=port, seconds=seconds)], timeout_s=60.0)

    return switch_off


def inside(inventory, switch):
    """What a command begins with that is to run among a switch's ports."""
    netns = inventory.access[switch].netns
    return ["nsenter", f"--net={netns}"] if netns else []


def neighbours(inventory, switch):
    """Port by the address that it leads to."""
    with remote.connect(switch, inventory.access[switch]) as connection:
        said = connection.run([*inside(inventory, switch), "ip", "-4", "neighbour", "show"], timeout_s=60.0)
    words = [line.split() for line in said.stdout.decode().splitlines()]
    return {line[0]: line[line.index("dev") + 1] for line in words if "dev" in line}
