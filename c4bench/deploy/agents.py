"""Agents on hosts: installed with certificates of their own and started; stopped and removed without a trace."""

import datetime
import tarfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import yaml

from c4bench.deploy import bundle
from c4bench.deploy.authority import establish
from c4bench.deploy.playbook import PlaybookResult, playbook
from c4bench.inventory import Inventory
from c4bench.model.fabric import Host

_ETC = "/etc/c4bench"
_CLOCKS_APART = datetime.timedelta(days=1)  # a host whose clock is behind must not find its certificate too young


def deploy(
    inventory: Inventory, hosts: Sequence[Host], *, master: str, port: int, directory: Path, cache: Path
) -> Path:
    """Install and start the agent on `hosts`; returns the folder with the certificates the master is to use.

    `master` is the address at which hosts reach the master. A new authority is made every time, in `directory`, where
    Ansible's records go too; the bundle is kept in `cache`. Raises UnhealthyError naming host, task and reason.
    """
    names = [host.name for host in hosts]
    trust = directory / "trust"
    establish(trust, names, datetime.datetime.now(datetime.UTC) - _CLOCKS_APART)
    identities = directory / "identities"
    identities.mkdir(mode=0o700, exist_ok=True)
    for host in hosts:
        _write_identity(identities / f"{host.name}.tar", trust, host, master, port)
    variables = {"c4_bundle": str(bundle.build(cache).resolve()), "c4_identities": str(identities.resolve())}
    playbook("deploy", inventory, hosts=names, variables=variables, directory=directory)
    return trust


def teardown(inventory: Inventory, hosts: Sequence[Host], *, directory: Path) -> PlaybookResult:
    """Stop the agent on `hosts` and remove everything `deploy` put there."""
    return playbook("teardown", inventory, hosts=[host.name for host in hosts], variables={}, directory=directory)


def _write_identity(path: Path, trust: Path, host: Host, master: str, port: int) -> None:
    nics = [msgspec.to_builtins(nic) for nic in host.nics]
    config = {"name": host.name, "master": master, "port": port, "trust": _ETC, "nics": nics}
    files = {
        "agent.yml": yaml.safe_dump(config, sort_keys=False).encode(),
        "ca.pem": (trust / "ca.pem").read_bytes(),
        "cert.pem": (trust / f"{host.name}.pem").read_bytes(),
        "key.pem": (trust / f"{host.name}.key").read_bytes(),
    }
    path.touch(mode=0o600)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            bundle.add(tar, name, content, 0o600)
