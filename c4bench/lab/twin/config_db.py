"""CONFIG_DB as files have it, and as redis does: a list is a text with commas there, in a field with an `@`."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from c4bench.lab.twin.factory import Config
from c4bench.lab.twin.redis import PLACEHOLDER, Redis, set_row
from c4bench.lab.twin.tables import natural

SAVED = Path("/etc/sonic/config_db.json")
_Filed = dict[str, dict[str, dict[str, str | int | float | bool | list[str]]]]


def read(path: Path) -> Config:
    """The tables of a file. Raises OSError, and ValueError where it is no CONFIG_DB."""
    filed = msgspec.json.decode(path.read_bytes(), type=_Filed)
    return {table: {key: _flat(row) for key, row in rows.items()} for table, rows in filed.items()}


def _flat(row: Mapping[str, object]) -> dict[str, str]:
    return {
        f"{field}@" if isinstance(value, list) else field: ",".join(value) if isinstance(value, list) else str(value)
        for field, value in row.items()
    }


def add(database: Redis, tables: Config) -> None:
    """Write tables beside what is there."""
    database.together(list(_commands(database, tables)))


def replace(database: Redis, tables: Config) -> None:
    """Write tables instead of what is there, at once."""
    database.together([("MULTI",), ("FLUSHDB",), *_commands(database, tables), ("EXEC",)])


def _commands(database: Redis, tables: Config) -> Iterator[tuple[object, ...]]:
    for table, rows in tables.items():
        for key, row in rows.items():
            yield set_row(f"{table}{database.separator}{key}", row)


def printed(database: Redis) -> str:
    """All tables as a file has them."""
    tables = {
        table: {key: _deep(row) for key, row in sorted(rows.items(), key=lambda one: natural(one[0]))}
        for table, rows in sorted(database.tables().items())
    }
    return json.dumps(tables, indent=4)


def _deep(row: Mapping[str, str]) -> dict[str, object]:
    return {
        field.removesuffix("@"): value.split(",") if field.endswith("@") else value
        for field, value in row.items()
        if field != PLACEHOLDER
    }
