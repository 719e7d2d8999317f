"""Ask a host what it has, and write that beside the inventory: data that neither Ansible nor c4bench evaluates.

Only known keys pass, each with a value of its own form. The host's answer is no variable of Ansible's at any time.
Plain Ansible loads this, so it needs only that and the standard library.
"""

import ipaddress
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.plugins.action import ActionBase

_LONGEST = 1 << 20
_MOST_ENTRIES = 256
_MOST_INDEX = 1023
_SHOWN = 80
_STRING = "tag:yaml.org,2002:str"
_HEAD = """\
# Found by c4bench's playbooks/discover.yml: check it, correct it, and set `disruptive` where faults are allowed.
c4:
  disruptive: false
"""
Form = Callable[[object], bool]


class ActionModule(ActionBase):
    """The action `c4_discover`: runs `program` on the host and writes `folder`/c4bench.yml on this machine.

    An existing file is kept unless `overwrite`. The result says whether a file was written, or what was refused.
    """

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Do it; in check mode ask the host, and write nothing."""
        super().run(tmp, task_vars)
        host = (task_vars or {})["inventory_hostname"]
        try:
            changed = self._write(host_vars(self._ask()))
        except (ValueError, OSError) as error:
            return {"failed": True, "msg": f"{host}: {error}; nothing is written: correct that, or write c4 by hand"}
        return {"changed": changed}

    def _ask(self) -> str:
        program = Path(self._task.args["program"]).read_text()
        if self._connection.has_pipelining:  # without a terminal, which not every host gives
            answer = self._low_level_execute_command("python3 -", in_data=program.encode())
        else:
            answer = self._low_level_execute_command(f"python3 -c {shlex.quote(program)}")
        if answer["rc"]:
            raise ValueError(f"python3 failed there: {_shown(answer['stderr'].strip().rpartition(chr(10))[2])}")
        # What the login itself prints may stand before it.
        return next((line for line in reversed(answer["stdout"].splitlines()) if line.startswith("{")), "")

    def _write(self, text: str) -> bool:
        path = Path(self._task.args["folder"], "c4bench.yml")
        if path.exists() and not (self._task.args["overwrite"] and path.read_text() != text):
            return False
        if not self._task.check_mode:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(f".{os.getpid()}")
            unfinished.write_text(text)
            unfinished.replace(path)
        return True


def host_vars(said: str) -> str:
    """The file of a host's variable `c4`, from the JSON that files/facts.py printed there.

    Raises ValueError: the key and what is wrong with its value, in one line of printable ASCII.
    """
    return _HEAD + "".join(_lines(_decoded(said)))


def _decoded(said: str) -> object:
    if len(said) > _LONGEST:
        raise ValueError(f"what it says of itself is longer than {_LONGEST} characters")
    try:
        return json.loads(said)
    except (ValueError, RecursionError):
        raise ValueError(f"what it says of itself is no JSON: {_shown(said)}") from None


def _lines(facts: object) -> Iterator[str]:
    for key, value in _mapping(facts, "c4", {**_HOST, **_TABLES}):
        if key in _TABLES:
            yield from _table(key, value)
        else:
            yield f"  {key}: {_written(value, key, _HOST[key])}\n"


def _table(name: str, entries: object) -> Iterator[str]:
    if not isinstance(entries, list) or len(entries) > _MOST_ENTRIES:
        raise ValueError(f"c4.{name} is no list of up to {_MOST_ENTRIES} entries: {_shown(entries)}")
    yield f"  {name}:\n" if entries else f"  {name}: []\n"
    for number, entry in enumerate(entries):
        where = f"{name}[{number}]"
        written = [
            f"{key}: {_written(value, f'{where}.{key}', _TABLES[name][key])}"
            for key, value in _mapping(entry, f"c4.{where}", _TABLES[name])
        ]
        yield "    - " + ("\n      ".join(written) or "{}") + "\n"


def _mapping(value: object, where: str, known: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is no mapping: {_shown(value)}")
    for key, below in value.items():
        if key not in known:
            raise ValueError(f"{where} has the key {_shown(key)}, and a host may only say {', '.join(sorted(known))}")
        yield key, below


def _written(value: object, where: str, fits: Form) -> str:
    """A value as YAML. Texts are `!unsafe`: Ansible takes these for no templates.

    Those that without quotes would be something else in YAML, such as 17:00.0, are only quoted: ansible-core 2.19 and
    later read `!unsafe "17:00.0"` as a number.
    """
    if not fits(value):
        raise ValueError(f"c4.{where} has not the form that is accepted: {_shown(value)}")
    resolved = yaml.SafeLoader("").resolve(yaml.ScalarNode, str(value), (True, False))
    return f"!unsafe {json.dumps(value)}" if resolved == _STRING else json.dumps(value)


def _shown(value: object) -> str:
    """A host's value in printable ASCII, on one line."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _text(pattern: str) -> Form:
    form = re.compile(pattern)
    return lambda value: isinstance(value, str) and form.fullmatch(value) is not None


def _address(value: object) -> bool:
    try:
        return isinstance(value, str) and "%" not in value and bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def _index(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST_INDEX


_INTERFACE = _text(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,14}")
_HOST: dict[str, Form] = {"management": _INTERFACE}
_TABLES: dict[str, dict[str, Form]] = {
    "nics": {
        "device": _text(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}"),
        "netdev": _INTERFACE,
        "address": _address,
        "rate": _text(r"[0-9]{1,5}(\.[0-9]{1,4})?gbit"),
        "leaf": _text(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}/[A-Za-z0-9]([A-Za-z0-9_.:/ -]{0,62}[A-Za-z0-9])?"),
    },
    "gpus": {
        "index": _index,
        "model": _text(r"[A-Za-z0-9]([A-Za-z0-9 _.()/+-]{0,126}[A-Za-z0-9)])?"),
        "pci": _text(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"),
        "nic": _index,
    },
}
