"""The database: transactions, migrations, and what is said when something is wrong."""

import shutil
import threading
from pathlib import Path

import psycopg
import pytest

from components.errors import StoreError, Unavailable
from store import db as store_db
from store.db import Conn, Database, insert_new, open_database, upgrade, upsert

pytestmark = pytest.mark.postgres


def test_block_is_one_transaction(database: Database) -> None:
    with database.connect() as conn:
        conn.execute("create table scratch (n int)")
    with pytest.raises(RuntimeError, match="stop"), database.connect() as conn:  # noqa: PT012
        conn.execute("insert into scratch values (1)")
        raise RuntimeError("stop")
    with database.connect() as conn:
        assert conn.execute("select count(*) from scratch").fetchone() == (0,)
        conn.execute("drop table scratch")


ID_HOLDS_AGENT = {
    "trajectory": "its id is a digest of the agent and the conversation, the group or the task",
    "failure_case": "its id is a digest of the trajectory's",
    "failure_mode": "its id is a digest of its first case's",
    "bundle": "its id is a digest of the agent and the content",
    "report": "its id is a digest of its lineage, which holds the agent",
    "ledger": "its key is a digest of the agent and the inputs",
    "promotion": "its id is a counter",
}
"""Tables with an agent whose key does not name it, and why two agents never share a row of them."""
KEYS_WITHOUT_AGENT = """
select columns.table_name from information_schema.columns
where columns.table_schema = 'public' and columns.column_name = 'agent' and not exists (
    select from information_schema.table_constraints
    join information_schema.key_column_usage using (constraint_schema, constraint_name)
    where table_constraints.table_name = columns.table_name and constraint_type = 'PRIMARY KEY'
        and key_column_usage.column_name = 'agent')
"""


def test_no_row_is_shared_by_two_agents(conn: Conn) -> None:
    assert {row[0] for row in conn.execute(KEYS_WITHOUT_AGENT)} == set(ID_HOLDS_AGENT)


def test_migrations_are_applied_once(tmp_path: Path, conn: Conn) -> None:
    """Two files, the second added later: each runs once, in order of its number."""
    conn.execute("delete from migration")
    first = tmp_path / "0001_one.sql"
    first.write_text("create table one (n int); insert into one values (1);")
    assert upgrade(conn, tmp_path) == ["0001_one.sql"]
    (tmp_path / "0002_two.sql").write_text("insert into one values (2)")
    assert upgrade(conn, tmp_path) == ["0002_two.sql"]
    assert upgrade(conn, tmp_path) == []
    assert conn.execute("select sum(n) from one").fetchone() == (3,)


def test_edited_migration_is_refused(tmp_path: Path, conn: Conn) -> None:
    conn.execute("delete from migration")
    file = tmp_path / "0001_one.sql"
    file.write_text("create table one (n int)")
    upgrade(conn, tmp_path)
    file.write_text("create table one (n bigint)")
    with pytest.raises(StoreError, match=r"'0001_one\.sql' was changed after it was applied"):
        upgrade(conn, tmp_path)


def test_database_of_a_later_program_is_refused(tmp_path: Path, conn: Conn) -> None:
    conn.execute(
        "insert into migration (number, name, digest) values (9000, '9000_later.sql', 'x')"
    )
    with pytest.raises(StoreError, match=r"'9000_later\.sql', which this program does not know"):
        upgrade(conn)


def test_failed_migration_leaves_nothing(tmp_path: Path, database: Database) -> None:
    shutil.copytree(store_db.MIGRATIONS, tmp_path, dirs_exist_ok=True)
    (tmp_path / "9999_bad.sql").write_text("create table half (n int); select no_such_function()")
    with pytest.raises(StoreError, match="no_such_function"), database.connect() as conn:
        upgrade(conn, tmp_path)
    with database.connect() as conn:
        assert conn.execute("select to_regclass('half')").fetchone() == (None,)


def test_upgrades_at_the_same_time_wait_for_each_other(tmp_path: Path, database: Database) -> None:
    """The second would fail with "already exists" if it did not wait."""
    shutil.copytree(store_db.MIGRATIONS, tmp_path, dirs_exist_ok=True)
    (tmp_path / "0900_slow.sql").write_text("create table slow (n int); select pg_sleep(0.2)")
    applied: list[list[str]] = []

    def run() -> None:
        with database.connect() as conn:
            applied.append(upgrade(conn, tmp_path))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.connect() as conn:
        conn.execute("drop table slow")
        conn.execute("delete from migration where number = 900")
    assert sorted(applied) == [[], [], ["0900_slow.sql"]]


def test_lost_connection_may_be_repeated(database: Database) -> None:
    """The server ends the connection in mid-transaction; the next call works."""
    with (  # noqa: PT012
        pytest.raises(Unavailable, match="may be repeated"),
        database.connect() as conn,
    ):
        with database.apart("killer") as other:
            other.execute("select pg_terminate_backend(%s)", (conn.info.backend_pid,))
        conn.execute("select 1")
    with database.connect() as conn:
        assert conn.execute("select 1").fetchone() == (1,)


def test_absent_server_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be reached") as caught:
        open_database("postgresql://me:secret@127.0.0.1:1/nowhere", tmp_path)
    assert "me:***@127.0.0.1" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_foreign_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="must look like 'postgresql://user@host/name'"):
        open_database("mysql://host/name", tmp_path)


def test_missing_table_says_what_to_run(database: Database) -> None:
    with pytest.raises(StoreError, match="nightshift db upgrade"), database.connect() as conn:
        conn.execute("select * from no_such_table")


def test_full_disk_says_so(database: Database) -> None:
    """The server's own error class for a full disk is 53100."""
    with pytest.raises(StoreError, match=r"(?s)is full.*Free space"), database.connect() as conn:
        conn.execute("do $$ begin raise exception 'no space left' using errcode = '53100'; end $$")


def test_open_again_reaches_the_same_server(database: Database) -> None:
    """The socket's folder is in the URL; a second opening of the same home sees the same tables."""
    with open_database(database.url, Path("/nonexistent")) as again, again.connect() as conn:
        assert conn.execute("select to_regclass('ledger')::text").fetchone() == ("ledger",)


def test_sqlalchemy_url_makes_the_database_once(database: Database) -> None:
    url = database.sqlalchemy_url("side")
    assert url == database.sqlalchemy_url("side")
    assert url.startswith("postgresql+psycopg://")
    with psycopg.connect(url.replace("+psycopg", "")) as conn:
        assert conn.execute("select current_database()").fetchone() == ("side",)


def test_bulk_writes(conn: Conn) -> None:
    """Keys 1, 2 then 2, 3: the second insert adds one row; the upsert changes 2 and adds 4."""
    conn.execute("create table bulk (n int primary key, word text)")
    assert insert_new(conn, "bulk", ("n", "word"), [(1, "a"), (2, "b\t\\n")]) == 2
    assert insert_new(conn, "bulk", ("n", "word"), [(2, "other"), (3, None)]) == 1
    change = "on conflict (n) do update set word = excluded.word"
    assert upsert(conn, "bulk", ("n", "word"), [(2, "changed"), (4, "d")], change) == 2
    assert insert_new(conn, "bulk", ("n", "word"), []) == 0
    rows = conn.execute("select n, word from bulk order by n").fetchall()
    assert rows == [(1, "a"), (2, "changed"), (3, None), (4, "d")]
