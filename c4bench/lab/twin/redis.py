"""A client of a redis-server: SONiC's databases by name, and notes of changed keys.

It speaks RESP, version 2 (redis.io, "Redis serialization protocol specification"), over a Unix socket. A table's row is
a hash whose key is the table's name, a separator and the row's key.
"""

import socket
from collections.abc import Mapping

SOCKET = "/run/redis/redis.sock"
# Numbers and separators, as in SONiC's database_config.json.
DATABASES: Mapping[str, tuple[int, str]] = {
    "APPL_DB": (0, ":"),
    "ASIC_DB": (1, ":"),
    "COUNTERS_DB": (2, ":"),
    "LOGLEVEL_DB": (3, ":"),
    "CONFIG_DB": (4, "|"),
    "FLEX_COUNTER_DB": (5, ":"),
    "STATE_DB": (6, "|"),
}

PLACEHOLDER = "NULL"  # field and value of a row without fields

Answer = None | int | str | list["Answer"]
Rows = dict[str, dict[str, str]]


class RedisError(Exception):
    """The server has refused a command."""


class Redis:
    """A connection to one database. Raises OSError where there is no server."""

    def __init__(self, database: str, path: str = SOCKET) -> None:
        number, self.separator = DATABASES[database]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._stream = self._socket.makefile("rb")
        self.call("SELECT", number)

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()

    def fileno(self) -> int:
        """The descriptor of its socket."""
        return self._socket.fileno()

    def call(self, *words: object) -> Answer:
        """The answer to one command. Raises RedisError."""
        return self.together([words])[0]

    def together(self, commands: list[tuple[object, ...]]) -> list[Answer]:
        """The answers to commands that are sent at once. Raises RedisError for the first that is refused."""
        self._socket.sendall(b"".join(_encoded(words) for words in commands))
        return [self.receive() for _ in commands]

    def receive(self) -> Answer:
        """The next answer or message of the server."""
        line = self._stream.readline()[:-2].decode()
        kind, value = line[:1], line[1:]
        match kind:
            case "+":
                return value
            case "-":
                raise RedisError(value)
            case ":":
                return int(value)
            case "$":
                return self._text(int(value))
            case "*":
                return [self.receive() for _ in range(int(value))]
        raise self._lost()

    def _text(self, length: int) -> str | None:
        if length < 0:
            return None
        data = self._stream.read(length + 2)
        if len(data) < length + 2:
            raise self._lost()
        return data[:-2].decode()

    def _lost(self) -> ConnectionResetError:
        return ConnectionResetError("the connection to redis-server was lost")

    def drain(self) -> None:
        """Read what a subscription has received, and forget it. Raises OSError when the connection is lost."""
        if not self._socket.recv(1 << 16):
            raise self._lost()

    def keys(self, pattern: str = "*") -> list[str]:
        """The keys that match, sorted."""
        found = self.call("KEYS", pattern)
        return sorted(str(key) for key in found) if isinstance(found, list) else []

    def row(self, key: str) -> dict[str, str]:
        """A hash; an empty one where there is none."""
        return _hash(self.call("HGETALL", key))

    def rows(self, pattern: str = "*") -> Rows:
        """All hashes whose keys match, by key."""
        keys = self.keys(pattern)
        kinds = self.together([("TYPE", key) for key in keys])
        hashes = [key for key, kind in zip(keys, kinds, strict=True) if kind == "hash"]
        return {
            key: _hash(one) for key, one in zip(hashes, self.together([("HGETALL", k) for k in hashes]), strict=True)
        }

    def table(self, name: str) -> Rows:
        """The rows of a table, by their keys without its name."""
        start = f"{name}{self.separator}"
        return {key.removeprefix(start): row for key, row in self.rows(f"{start}*").items()}

    def tables(self) -> dict[str, Rows]:
        """All tables by name."""
        found: dict[str, Rows] = {}
        for key, row in self.rows().items():
            name, _, rest = key.partition(self.separator)
            found.setdefault(name, {})[rest] = row
        return found

    def write(self, table: str, key: str, fields: Mapping[str, object]) -> None:
        """Set these fields of a row and leave its others."""
        self.together([set_row(f"{table}{self.separator}{key}", fields)])

    def remove(self, table: str, key: str, *fields: str) -> None:
        """Remove these fields of a row; without any, the row."""
        place = f"{table}{self.separator}{key}"
        self.call(*(("HDEL", place, *fields) if fields else ("DEL", place)))


def set_row(key: str, fields: Mapping[str, object]) -> tuple[object, ...]:
    """The command that sets these fields; a row without fields has SONiC's placeholder."""
    pairs = [word for pair in (fields or {PLACEHOLDER: PLACEHOLDER}).items() for word in pair]
    return ("HSET", key, *pairs)


def _encoded(words: tuple[object, ...]) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def _hash(answer: Answer) -> dict[str, str]:
    words = [str(word) for word in answer] if isinstance(answer, list) else []
    return dict(zip(words[::2], words[1::2], strict=True))
