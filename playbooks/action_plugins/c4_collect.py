"""Bring the logs and the state of a host home as one archive, which nothing here opens.

Plain Ansible loads this, so it needs only that and the standard library.
"""

import base64
import os
import shlex
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

_LONGEST = 256 << 20


class ActionModule(ActionBase):
    """The action `c4_collect`: runs `program` on the host with the variables `given`, and writes `folder`/HOST.tar.gz.

    The archive is readable by its owner only. In check mode nothing is done.
    """

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Do it. The result says what went wrong, in one line."""
        super().run(tmp, task_vars)
        host = (task_vars or {})["inventory_hostname"]
        try:
            if not self._task.check_mode:
                self._keep(f"{host}.tar.gz", self._ask())
        except (ValueError, OSError) as error:
            return {"failed": True, "msg": f"{host}: {error}; no archive is written: look on the host itself"}
        return {"changed": False}

    def _ask(self) -> bytes:
        given = "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in self._task.args["given"].items())
        program = given + Path(self._task.args["program"]).read_text()
        if self._connection.has_pipelining:  # without a terminal, which not every host gives
            answer = self._low_level_execute_command("bash -s", in_data=program.encode())
        else:
            answer = self._low_level_execute_command(f"bash -c {shlex.quote(program)}")
        # What the login itself prints may stand before it.
        archive = answer["stdout"].strip().rpartition("\n")[2]
        if answer["rc"] or not archive or len(archive) > _LONGEST:
            raise ValueError(f"collecting failed there (code {answer['rc']}, {len(archive)} characters)")
        return base64.b64decode(archive, validate=True)

    def _keep(self, name: str, archive: bytes) -> None:
        path = Path(self._task.args["folder"], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(archive)
        unfinished.replace(path)
