"""What is started where, for a command and its hosts: on each host, as server and client, or by a launcher.

A launcher gets hosts, remote shell and what ranks inherit by its own variables, so that a command stays as its user
writes it. Words in braces stand for what differs from host to host: `{device}`, `{address}` and `{gid}` are the RDMA
device, the address and the GID index of the host's first NIC, `{server}` and `{server_address}` the server's management
address and that of its first NIC.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from c4bench.attach.launchers import JOB, RANK, SIZE, exporting, is_mpi, is_open_mpi
from c4bench.attach.programs import Start
from c4bench.errors import UsageError
from c4bench.inventory import Access
from c4bench.model.fabric import Host, Nic
from c4bench.remote.local import ssh_words

# Programs whose client takes the server's address as its last word.
_SERVED = re.compile(r"ib_(write|read|send|atomic)_(bw|lat)|ucx_perftest|ibv_\w+_pingpong|fi_\w*pingpong")
_MASTER_PORT = "29500"
# Open MPI passes the name of its remote shell on to hosts, where ours is not: it finds ours as `ssh` on its PATH.
SHELL, SLOTS_FILE, COUNTS_FILE = "ssh", "hosts.openmpi", "hosts.hydra"
Words = tuple[str, ...]


class Place(NamedTuple):
    """A host as commands see it: how it is reached, and what finds out the GID index of its first NIC."""

    host: Host
    access: Access
    gid: Callable[[], int]


def words_of(command: str | Sequence[str]) -> Words:
    """The words of a command, split as a shell does where it is one string. Raises UsageError."""
    try:
        words = tuple(shlex.split(command) if isinstance(command, str) else command)
    except ValueError as error:
        raise UsageError(f"{command}: {error}") from None
    if not words:
        raise UsageError("no command is given; give the words of a program")
    return words


def is_served(words: Words) -> bool:
    """Whether it is a program that runs as server and as client with the same words."""
    return _SERVED.fullmatch(PurePath(words[0]).name) is not None


def on_each(words: Words, places: Sequence[Place], job: str, environment: Mapping[str, str]) -> tuple[Start, ...]:
    """The command once on each host, numbered for c4bench and as torch.distributed's `env://` expects it."""
    meeting = {"MASTER_ADDR": places[0].host.address, "MASTER_PORT": _MASTER_PORT, "WORLD_SIZE": str(len(places))}
    return tuple(
        _start(place, filled(words, place), _rank(job, rank, len(places)) | meeting | {"RANK": str(rank)}, environment)
        for rank, place in enumerate(places)
    )


def server_and_client(
    server: Words, client: Words, places: Sequence[Place], job: str, environment: Mapping[str, str]
) -> tuple[Start, ...]:
    """A server on the first of two hosts, as rank 0, and its client on the second.

    Where both have the same words, and none says where the server is, the client gets its address as last word.
    """
    if len(places) != 2:
        raise UsageError(f"{client[0]}: a server and a client run on 2 hosts, not on {len(places)}; name them in order")
    here, there = places
    named = any("{server" in word for word in client)
    client = client if named or client != server else (*client, "{server}")
    return (
        _start(here, filled(server, here, here.host), _rank(job, 0, 2), environment),
        _start(there, filled(client, there, here.host), _rank(job, 1, 2), environment),
    )


def launched(
    words: Words, hosts: Sequence[Host], address: str, version: str, added: Mapping[str, str]
) -> tuple[Words, dict[str, str]]:
    """The words and the variables of a launcher that runs at `address`, whose ranks inherit the variables `added`.

    `version` is what `--version` prints. The words are those that it has no variable for. srun's hosts are the
    inventory's names.
    """
    if not is_mpi(words):
        nodes = ",".join(host.name for host in hosts)
        return (words[0], f"--nodelist={nodes}", f"--nodes={len(hosts)}", *words[1:]), dict(added)
    if is_open_mpi(words, version):
        return exporting(words, added), {}
    if "HYDRA" in version.upper():  # ranks' hosts may not know the name of this one
        words = (words[0], "-localhost", address, *words[1:])
    return words, dict(added)


def launcher_files(places: Sequence[Place], slots: int) -> dict[str, str]:
    """The files that `launcher_environment` names: hosts with `slots` ranks each, and the remote shell."""
    addresses = [place.host.address for place in places]
    return {
        SLOTS_FILE: "".join(f"{address} slots={slots}\n" for address in addresses),
        COUNTS_FILE: "".join(f"{address}:{slots}\n" for address in addresses),
        SHELL: remote_shell(places),
    }


def remote_shell(places: Iterable[Place]) -> str:
    """A shell script, called as `ssh [OPTION...] HOST COMMAND...`, that reaches the hosts as the inventory says."""
    branches = []
    for place in places:
        local = place.access.connection == "local"
        words = 'sh -c "$*"' if local else f'{shlex.join(ssh_words(place.access))} "$@"'
        branches.append(f"{shlex.quote(place.host.address)}) exec {words} ;;\n")
    return (
        "#!/bin/sh\n"
        'PATH=${PATH#"${0%/*}":}\n'
        "while case $1 in -*) ;; *) false ;; esac; do shift; done\n"
        "host=$1\nshift\n"
        f"case $host in\n{''.join(branches)}esac\n"
        'echo "c4bench: $host is not a host of this program" >&2\nexit 255\n'
    )


def launcher_environment(folder: PurePath, networks: Sequence[str], path: str) -> dict[str, str]:
    """Variables of Open MPI 4, of its newer launcher (PRRTE) and of Hydra, with files of `folder`.

    `networks` (CIDR) are those by which launcher and ranks may reach each other. `path` is the launcher's PATH, before
    which our remote shell is put; with "" the launcher reaches hosts by its own `ssh`.
    """
    slots, counts, shell = (str(folder / name) for name in (SLOTS_FILE, COUNTS_FILE, SHELL))
    found = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_orte_default_hostfile": slots,
        "PRTE_MCA_prte_default_hostfile": slots,
        "HYDRA_HOST_FILE": counts,
        "HYDRA_LAUNCHER": "ssh",
    }
    if networks:
        # PRRTE 3.0 has the same setting, but its daemons crash where a host is not in the first of several networks.
        names = ("OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_btl_tcp_if_include")
        found |= dict.fromkeys(names, ",".join(networks))
    if path:
        found |= {"PATH": f"{folder}:{path}", "HYDRA_LAUNCHER_EXEC": shell}
        # Hosts may have no way to each other.
        found |= {"OMPI_MCA_plm_rsh_no_tree_spawn": "1", "PRTE_MCA_plm_ssh_no_tree_spawn": "1"}
    return found


def filled(words: Words, place: Place, server: Host | None = None) -> Words:
    """The words of a command on one host. Raises UsageError for a NIC that the host does not have."""
    known: dict[str, Callable[[], str]] = {
        "{device}": lambda: _first_nic(place.host).device,
        "{address}": lambda: _first_nic(place.host).address,
        "{gid}": lambda: str(place.gid()),
    }
    if server:
        known |= {"{server}": lambda: server.address, "{server_address}": lambda: _first_nic(server).address}
    return tuple(_filled(word, known) for word in words)


def _filled(word: str, known: Mapping[str, Callable[[], str]]) -> str:
    for name, value in known.items():
        if name in word:
            word = word.replace(name, value())
    return word


def _first_nic(host: Host) -> Nic:
    if not host.nics:
        raise UsageError(f"{host.name} has no NIC in the inventory (c4.nics), and so no {{device}} or {{address}}")
    return host.nics[0]


def _rank(job: str, rank: int, size: int) -> dict[str, str]:
    return {JOB: job, RANK: str(rank), SIZE: str(size)}


def filled_values(environment: Mapping[str, str], place: Place) -> dict[str, str]:
    """Variables with the words in braces that they hold, as on one host."""
    return dict(zip(environment, filled(tuple(environment.values()), place), strict=True))


def _start(place: Place, words: Words, own: Mapping[str, str], environment: Mapping[str, str]) -> Start:
    return Start(place.host.name, place.access, words, {**own, **filled_values(environment, place)})
