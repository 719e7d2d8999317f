"""A switch of the lab as a machine: it boots and crashes, and is reached over SSH as `admin`."""

import os
import shutil
import uuid
from pathlib import Path

from c4bench import namespaces
from c4bench.lab.guest import fabric
from c4bench.lab.guest.hosts import LabHost, start_sshd
from c4bench.lab.guest.provision import SWITCH_USER as USER
from c4bench.lab.spec import LabSpec
from c4bench.lab.twin import client, commands, config, factory, lldp, orchestrator, show, tools
from c4bench.lab.twin.ports import layout_of
from c4bench.lab.twin.redis import SOCKET
from c4bench.model.fabric import Host

_STATE = Path("/run/c4/switches")  # what a switch keeps over a reboot
_SUDO = Path("/run/c4/sudo")
_ACCOUNTS = f"""\
root:x:0:0:root:/run/root:/bin/bash
sshd:x:100:65534::/run/sshd:/usr/sbin/nologin
{lldp.ACCOUNT}{USER}:x:1000:1000::/home/{USER}:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUPS = f"root:x:0:\n_lldpd:x:101:{USER}\nredis:x:102:{USER}\n{USER}:x:1000:\nnogroup:x:65534:\n"
_SHADOW = "".join(f"{name}:*:19700:0:99999:7:::\n" for name in ("root", "sshd", "_lldpd", USER))
_SUDOERS = f"""\
Defaults secure_path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
{USER} ALL=(ALL) NOPASSWD: ALL
"""
_PAM = "auth required pam_permit.so\naccount required pam_permit.so\nsession required pam_permit.so\n"
_REDIS_GROUP = 102
_USER_ID = 1000
MODULES = (show, config, tools)  # whose import fills the table of commands


class LabSwitch(LabHost):
    """One switch that runs SONiC's databases and commands."""

    def __init__(self, name: str, spec: LabSpec) -> None:
        super().__init__(Host(name, spec.topology.management(name), ()), spec)
        self._layout = layout_of(spec.topology, name)
        self._dscp = next(nic.dscp for host in spec.topology.hosts for nic in host.nics)

    def furnish(self, root: Path) -> None:
        """Accounts, sudo, the commands, and the folder that outlives a reboot."""
        for path, text, mode in (
            ("etc/passwd", _ACCOUNTS, 0o644),
            ("etc/group", _GROUPS, 0o644),
            ("etc/shadow", _SHADOW, 0o640),
            ("etc/sudoers", _SUDOERS, 0o440),
            ("etc/pam.d/sudo", _PAM, 0o644),
        ):
            _write(root / path, text, mode)
        home = root / "home" / USER
        home.mkdir(parents=True, exist_ok=True)
        os.chown(home, _USER_ID, _USER_ID)
        namespaces.bind(str(_SUDO / "sudo"), str(root / "usr/bin/sudo"))
        namespaces.bind(str(_SUDO / "plugins"), str(root / "usr/libexec/sudo"))
        (root / "run/redis").mkdir(mode=0o750)
        os.chown(root / "run/redis", 0, _REDIS_GROUP)
        kept = _STATE / self.host.name
        kept.mkdir(parents=True, exist_ok=True)
        (root / "etc/sonic").mkdir(exist_ok=True)
        namespaces.bind(str(kept), str(root / "etc/sonic"))
        _write(root / "etc/sonic/sonic_version.yml", factory.version_file(), 0o644)
        (root / tools.BOOTED.relative_to("/")).mkdir(parents=True)
        boot = root / "run/sonic/boot_id"
        boot.parent.mkdir()
        boot.write_text(f"{uuid.uuid4()}\n")
        namespaces.bind(str(boot), f"{root}/proc/sys/kernel/random/boot_id")
        program = Path(client.__file__).read_text()
        for name in commands.programs():
            _write(root / "usr/local/bin" / name, program, 0o755)
        for name in ("lldpcli", "lldpctl"):
            (root / "usr/local/bin" / name).symlink_to("/usr/sbin/lldpcli")
        lldp.furnish(root, self.spec.lldp_client, *self._lldp_lines())

    def _lldp_lines(self) -> list[str]:
        ports = (
            f"ports {port.name} lldp portidsubtype local {port.alias} description {port.name}"
            for port in self._layout.ports
        )
        return [f"system hostname {self.host.name}", f"system ip management pattern {self.host.address}", *ports]

    def start_services(self) -> None:
        """Start redis-server, then what applies its contents to the ports, then all that others reach."""
        orchestrator.start_server()
        os.chown(SOCKET, 0, _REDIS_GROUP)
        own = orchestrator.Orchestrator(self._layout, self._dscp, self.spec.topology.ecn)
        own.start()
        if os.fork() == 0:
            self._run(own)
        lldp.start("Ethernet*", f"SONiC Software Version: SONiC.{factory.VERSION} - HwSku: {factory.SKU}")
        start_sshd()

    def _run(self, own: orchestrator.Orchestrator) -> None:
        try:
            own.run()
        finally:
            os._exit(1)

    def _cut_links(self) -> None:
        self._set_management("down")
        fabric.batch("ip", self.host.name, [f"link set {port.name} down" for port in self._layout.ports])

    def _join_links(self) -> None:
        self._set_management("up")

    def _reset_network(self) -> None:
        lines = [f"qdisc del dev {port.name} clsact" for port in self._layout.ports]
        fabric.batch("tc", self.host.name, lines, force=True)


def _write(path: Path, text: str, mode: int) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def prepare() -> None:
    """Copy sudo once for all switches: it must belong to root, and the machine's may not in the lab's eyes."""
    plugins = _SUDO / "plugins"
    shutil.copytree("/usr/libexec/sudo", plugins)
    shutil.copy("/usr/bin/sudo", _SUDO / "sudo")
    for path in (_SUDO, *_SUDO.rglob("*")):
        os.chown(path, 0, 0, follow_symlinks=False)
    (_SUDO / "sudo").chmod(0o4755)
