"""Reference solutions, apart from their tasks: nothing that builds a prompt for the policy imports this module."""

from collections.abc import Iterable, Sequence

from components.records import ReferenceSolution
from components.serial import dump, load
from store.clean import clean_json
from store.db import Conn, insert_new

COLUMNS = ("task_id", "actions")
GET = "select task_id, actions from reference_solution where task_id = any(%s)"


def put(conn: Conn, solutions: Iterable[ReferenceSolution]) -> int:
    """Write executed solutions of stored tasks; how many were new."""
    rows = [
        (solution.task_id, clean_json(dump(solution)["actions"]).text) for solution in solutions
    ]
    return insert_new(conn, "reference_solution", COLUMNS, rows)


def get(conn: Conn, task_ids: Sequence[str]) -> dict[str, ReferenceSolution]:
    """The solutions of these tasks, by task id; a task without one is left out."""
    return {
        key: load(ReferenceSolution, {"task_id": key, "actions": actions})
        for key, actions in conn.execute(GET, (list(task_ids),))
    }
