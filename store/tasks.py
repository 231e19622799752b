"""Tasks: written once under their id; only the solver statistics change. Solutions are in `references.py`."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from components.errors import StoreError
from components.records import Split, Task
from components.serial import dump, load
from store.clean import clean_json
from store.db import Conn, insert_new

COLUMNS = ("id", "environment", "split", "night", "body", "solver_stats")
GET = "select id, body, solver_stats from task where id = any(%s)"
OF_SPLIT = """
select id, body, solver_stats from task where environment = %s and split = %s order by id limit %s
"""
SET_STATS = "update task set solver_stats = %s where id = %s"


def put(conn: Conn, tasks: Iterable[Task], night: str) -> int:
    """Write tasks; how many were new. The first night that made a task is kept."""
    rows = [
        (
            task.id,
            task.environment,
            task.split,
            night,
            clean_json(dump(dataclasses.replace(task, solver_stats=None))).text,
            None if task.solver_stats is None else clean_json(task.solver_stats).text,
        )
        for task in tasks
    ]
    return insert_new(conn, "task", COLUMNS, rows)


def get(conn: Conn, ids: Sequence[str]) -> list[Task]:
    """These tasks in the order asked for.

    Raises:
        StoreError: an id is not there.
    """
    found = {row[0]: _task(row) for row in conn.execute(GET, (list(ids),))}
    missing = [key for key in ids if key not in found]
    if missing:
        raise StoreError(
            f"{len(missing)} of {len(ids)} tasks are not in the store, first {missing[0]!r}"
        )
    return [found[key] for key in ids]


def of_split(conn: Conn, environment: str, split: Split, limit: int = 10_000) -> list[Task]:
    """Tasks of an environment and split, by id."""
    return [_task(row) for row in conn.execute(OF_SPLIT, (environment, split, limit))]


def set_solver_stats(conn: Conn, stats: Mapping[str, dict[str, float]]) -> None:
    """Replace the solver statistics of these tasks."""
    with conn.cursor() as cursor:
        cursor.executemany(
            SET_STATS, [(clean_json(value).text, key) for key, value in stats.items()]
        )


def _task(row: tuple[Any, ...]) -> Task:
    return dataclasses.replace(load(Task, row[1]), solver_stats=row[2])
