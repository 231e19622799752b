"""Everything a night leaves behind, in a form in which two nights can be compared: rows, registry, adapters.

Left out is only what says when something ran, in which process, how long it took and how often it was tried; those
columns and fields are named here, each with its reason.
"""

import json
from collections.abc import Mapping
from typing import Any

from psycopg import sql
from psycopg.rows import dict_row

from components.serial import digest
from store.db import Conn
from store.files import FileStore
from store.registry import Registry

COLUMNS: Mapping[tuple[str, str], str] = {
    ("migration", "applied_at"): "when",
    ("night", "started_at"): "when",
    ("night", "finished_at"): "when",
    ("ledger", "started_at"): "when",
    ("ledger", "finished_at"): "when",
    ("ledger", "heartbeat_at"): "when",
    ("ledger", "seconds"): "how long",
    ("ledger", "owner"): "which process",
    ("ledger", "attempts"): "how often: a killed attempt counts",
    ("log_file", "read_at"): "when",
    ("memory_revision", "made_at"): "when",
    ("case_review", "decided_at"): "when",
    ("promotion", "requested_at"): "when",
    ("promotion", "resolved_at"): "when",
}
FIELDS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("ledger", "output"): {
        "rates": "how fast",
        "run_id": "which MLflow run: each attempt opens one",
    },
    ("night", "summary"): {
        "rates": "how fast",
        "seconds": "how long",
        "status": "`done` when the last run did the stage, `unchanged` when it found it done",
    },
}
"""JSON keys left out at any depth of these columns."""
ORDERS: Mapping[str, str] = {"strategy": "sequence", "report": "sequence"}
"""Counters that skip numbers when a transaction is rolled back; only the order they give is compared."""

TABLES = """
select table_name from information_schema.tables where table_schema = 'public' and table_type = 'BASE TABLE' order by 1
"""
Rows = dict[str, list[dict[str, Any]]]


def rows(conn: Conn) -> Rows:
    """All rows of all tables, sorted, without what may differ between two runs of one night."""
    tables = [row[0] for row in conn.execute(TABLES)]
    return {table: _of_table(conn, table) for table in tables}


def _of_table(conn: Conn, table: str) -> list[dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(sql.SQL("select * from {}").format(sql.Identifier(table))).fetchall()
    order = ORDERS.get(table)
    if order:
        for place, row in enumerate(sorted(found, key=lambda row: row[order])):
            row[order] = place
    kept = [
        {
            column: _without(value, FIELDS.get((table, column), {}))
            for column, value in row.items()
            if (table, column) not in COLUMNS
        }
        for row in found
    ]
    return sorted(kept, key=lambda row: json.dumps(row, sort_keys=True, default=str))


def _without(value: Any, keys: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(inner, keys) for key, inner in value.items() if key not in keys}
    if isinstance(value, list):
        return [_without(inner, keys) for inner in value]
    return value


def versions(registry: Registry, agent: str) -> list[dict[str, Any]]:
    """The registered versions with lineage and aliases, without the run that registered them."""
    found = [
        {"version": each.version, "folder": each.folder.name, **each.tags}
        for each in registry.versions(agent)
    ]
    aliases = {
        alias: version.version if (version := registry.resolve(agent, alias)) else None
        for alias in ("champion", "challenger", "previous")
    }
    timed = ("promoted_at", "rolled_back_at")
    return [aliases, *({key: v for key, v in row.items() if key not in timed} for row in found)]


def adapter_files(files: FileStore, adapter: str) -> dict[str, str]:
    """File -> digest of its bytes, of a stored adapter."""
    folder = files.folder(adapter)
    return {
        path.relative_to(folder).as_posix(): digest(path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def differences(first: Rows, second: Rows) -> list[str]:
    """What differs, one line per table, with the first differing row."""
    lines: list[str] = []
    for table in sorted(first.keys() | second.keys()):
        ours, theirs = first.get(table, []), second.get(table, [])
        if ours == theirs:
            continue
        only = (
            [row for row in ours if row not in theirs],
            [row for row in theirs if row not in ours],
        )
        lines.append(f"{table}: {len(ours)} rows and {len(theirs)}; {_first(*only)}")
    return lines


def _first(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str:
    """The two rows that are most alike among those without a twin, column by column."""
    if not (ours and theirs):
        where = "first" if ours else "second"
        return f"only in the {where}: {str((ours or theirs or ['repeated rows'])[0])[:600]}"
    one, other = max(
        ((one, other) for one in ours for other in theirs),
        key=lambda pair: sum(pair[0][column] == pair[1].get(column) for column in pair[0]),
    )
    return "; ".join(_told(column, one[column], other.get(column)) for column in one)


def _told(column: str, one: Any, other: Any) -> str:
    if one == other:
        return f"{column} {str(one)[:40]!r}"
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in one | other if one.get(key) != other.get(key)]
        return "; ".join(_told(f"{column}.{key}", one.get(key), other.get(key)) for key in keys)
    return f"{column} {str(one)[:300]!r} and {str(other)[:300]!r}"
