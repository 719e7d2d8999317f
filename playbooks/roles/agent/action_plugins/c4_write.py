"""Give a host a user and files in one step; Ansible's own modules run two or three programs there for each file.

Plain Ansible loads this, so it needs only that and the standard library.
"""

import base64
import json
import shlex
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

_LONGEST = 1 << 16
_SHOWN = 300
_USER = "user"


class ActionModule(ActionBase):
    """The action `c4_write`: runs `program` on the host, which makes `user` and `files` there as they should be.

    Each of `files` has a `path` and a `mode`, and is root's and of `group` (root's). It holds `content`, or what the
    file `source` of this machine holds; without either it is a folder. One that is not `wanted` is left out; one for
    `systemd` is for hosts that systemd runs. A file that `validate`, a command, refuses is not written.

    The result names what was `written`, or would be in check mode, and says whether `systemd` runs the host.
    """

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Do it. The result says what went wrong, in one line."""
        super().run(tmp, task_vars)
        host = (task_vars or {})["inventory_hostname"]
        try:
            files = [self._file(file) for file in self._task.args["files"] if boolean(file.get("wanted", True))]
            wanted = {"user": self._task.args["user"], "files": files, "check": bool(self._task.check_mode)}
            said = self._ask(base64.b64encode(json.dumps(wanted).encode()).decode())
            known = {_USER, *(file["path"] for file in files)}
            written, systemd = sorted(known & set(said["written"])), said["systemd"] is True
        except (ValueError, TypeError, KeyError, OSError) as error:
            return {"failed": True, "msg": f"{host}: {error}"}
        return {"changed": bool(written), "written": written, "systemd": systemd}

    def _file(self, given: dict[str, Any]) -> dict[str, Any]:
        content = given.get("content")
        if "source" in given:  # read here, so that no key becomes a variable or stands in a log
            held: bytes | None = Path(self._loader.get_real_file(given["source"])).read_bytes()
        elif isinstance(content, dict):  # before 2.19 Ansible makes what looks like a mapping one
            held = f"{json.dumps(content, indent=2)}\n".encode()
        else:
            held = None if content is None else content.encode()
        return {
            "path": given["path"],
            "mode": int(given["mode"], 8),
            "group": given.get("group", "root"),
            "content": held if held is None else base64.b64encode(held).decode(),
            "validate": given.get("validate", []),
            "systemd": boolean(given.get("systemd", False)),
        }

    def _ask(self, wanted: str) -> dict[str, Any]:
        program = f"{Path(self._task.args['program']).read_text()}\nwrite('{wanted}')\n"
        if self._connection.has_pipelining:  # without a terminal, which not every host gives
            answer = self._low_level_execute_command("python3 -", in_data=program.encode())
        else:
            answer = self._from_a_file(program)
        if answer["rc"]:
            raise ValueError(f"writing failed there: {_shown(answer['stderr'].strip().rpartition(chr(10))[2])}")
        # What the login itself prints may stand before it.
        line = answer["stdout"].strip().rpartition("\n")[2]
        if len(line) > _LONGEST:
            raise ValueError(f"its answer is longer than {_LONGEST} characters")
        try:
            said: dict[str, Any] = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError(f"its answer is no JSON: {_shown(line)}") from None
        return said

    def _from_a_file(self, program: str) -> dict[str, Any]:
        """Run it from a folder of our own there: others see a command's words, and a key is among these."""
        folder = self._make_tmp_path()
        try:
            path = self._transfer_data(f"{folder}/write.py", program)
            answer: dict[str, Any] = self._low_level_execute_command(f"python3 {shlex.quote(path)}")
        finally:
            self._remove_tmp_path(folder)
        return answer


def _shown(text: str) -> str:
    """A host's words in printable ASCII, on one line."""
    shown = text.encode("ascii", "backslashreplace").decode()
    return "".join(letter if letter.isprintable() else "?" for letter in shown)[:_SHOWN]
