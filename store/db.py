"""The database: one pool of connections, one transaction per `connect`, and the migrations.

    with open_database(url, home) as db:
        with db.connect() as conn:      # commits at the end, rolls back on an error
            upgrade(conn)

Any PostgreSQL >= 15 with the extension `vector` serves; without a URL the embedded one starts in `home/postgres`. What
psycopg raises is translated here and nowhere else: `Unavailable` for what may be repeated, `StoreError` for the rest.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import psycopg
from pgvector.psycopg import register_vector
from psycopg import errors, sql
from psycopg_pool import ConnectionPool, PoolTimeout

from components.errors import StoreError, Unavailable
from components.serial import digest
from store import _embedded

MIGRATIONS = Path(__file__).parent / "migrations"
UPGRADE_LOCK = 0x4E696768
OLDEST_SERVER = 150000
KEEPALIVES_IDLE_S = 30
CONNECT_TIMEOUT_S = 10
POOL_TIMEOUT_S = 30.0

Conn: TypeAlias = psycopg.Connection[Any]

APPLIED = "select number, name, digest from migration order by number"
RECORD_APPLIED = "insert into migration (number, name, digest) values (%s, %s, %s)"
MIGRATION_TABLE = """
create table if not exists migration (
    number int primary key, name text not null, digest text not null,
    applied_at timestamptz not null default now())
"""

REPEATABLE = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.TooManyConnections,
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.LockNotAvailable,
    errors.IdleInTransactionSessionTimeout,
    PoolTimeout,
)


class Database:
    """An open database; closing it leaves the server to its other users."""

    def __init__(self, url: str, pool: "ConnectionPool[Conn]") -> None:
        self.url = url
        self._pool = pool

    @contextmanager
    def connect(self) -> Iterator[Conn]:
        """One transaction: committed at the end of the block, rolled back when it raises."""
        with translated(self.url), self._pool.connection() as conn:
            yield conn

    @contextmanager
    def apart(self, application_name: str) -> Iterator[Conn]:
        """A connection outside the pool, without a transaction, for a lock that outlives transactions."""
        with (
            translated(self.url),
            psycopg.connect(
                self.url,
                autocommit=True,
                application_name=application_name,
                connect_timeout=CONNECT_TIMEOUT_S,
                keepalives_idle=KEEPALIVES_IDLE_S,
            ) as conn,
        ):
            yield conn

    def sqlalchemy_url(self, database: str) -> str:
        """The URL of a database on the same server for SQLAlchemy; the database is made if it is missing."""
        with self.apart("nightshift create database") as conn:
            found = conn.execute("select 1 from pg_database where datname = %s", (database,))
            if found.fetchone() is None:
                # Another process may make it in this moment.
                with suppress(errors.DuplicateDatabase, errors.UniqueViolation):
                    conn.execute(sql.SQL("create database {}").format(sql.Identifier(database)))
        parts = urlsplit(self.url)
        return urlunsplit(("postgresql+psycopg", parts.netloc, f"/{database}", parts.query, ""))

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_database(url: str | None, home: Path) -> Database:
    """Open the database at this URL, or the embedded one in `home/postgres` when there is none.

    Raises:
        StoreError: the server cannot be reached, is too old, or lacks pgvector.
    """
    url = _embedded.start(home / "postgres" / "data") if url is None else url
    if not url.startswith(("postgresql://", "postgres://")):
        raise StoreError(
            f"a database URL must look like 'postgresql://user@host/name', got {_hidden(url)!r}"
        )
    with translated(url), psycopg.connect(url, connect_timeout=CONNECT_TIMEOUT_S) as conn:
        _check_server(conn, url)
    pool: ConnectionPool[Conn] = ConnectionPool(
        url,
        min_size=1,
        max_size=8,
        timeout=POOL_TIMEOUT_S,
        kwargs={
            "application_name": "nightshift",
            "connect_timeout": CONNECT_TIMEOUT_S,
            "keepalives_idle": KEEPALIVES_IDLE_S,
        },
        configure=_configure,
        check=ConnectionPool.check_connection,
        open=False,
        name="nightshift",
    )
    with translated(url):
        pool.open(wait=True, timeout=POOL_TIMEOUT_S)
    return Database(url, pool)


def probe(url: str) -> None:
    """Connect once.

    Raises:
        Unavailable: the database cannot be reached.
    """
    plain = url.replace("postgresql+psycopg://", "postgresql://", 1)
    with translated(plain), psycopg.connect(plain, connect_timeout=CONNECT_TIMEOUT_S):
        pass


def _check_server(conn: Conn, url: str) -> None:
    version = conn.info.server_version
    if version < OLDEST_SERVER:
        raise StoreError(
            f"the server at {_hidden(url)!r} is PostgreSQL {version // 10000}; 15 or later is needed"
        )
    try:
        conn.execute("create extension if not exists vector")
    except errors.UniqueViolation:
        conn.rollback()  # another process made it in this moment
    except (
        errors.FeatureNotSupported,
        errors.InsufficientPrivilege,
        errors.UndefinedFile,
    ) as error:
        raise StoreError(
            f"the database at {_hidden(url)!r} has no extension 'vector' and it could not be made: {error}. "
            "Install pgvector on the server and run 'create extension vector' as its owner."
        ) from error


def _configure(conn: Conn) -> None:
    register_vector(conn)
    conn.execute("set time zone 'UTC'")
    conn.commit()


def _hidden(url: str) -> str:
    """The URL without its password."""
    parts = urlsplit(url)
    if parts.password:
        netloc = parts.netloc.replace(f":{parts.password}@", ":***@")
        return urlunsplit(parts._replace(netloc=netloc))
    return url


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Raise psycopg's errors as ours."""
    try:
        yield
    except errors.DiskFull as error:
        raise StoreError(
            f"the disk of the database at {_hidden(url)!r} is full: {error}. Nothing of this transaction "
            "was written. Free space there, then run the same command again; it continues where it stopped."
        ) from error
    except REPEATABLE as error:
        raise Unavailable(_unavailable(url, error)) from error
    except psycopg.OperationalError as error:
        # No SQLSTATE means that the connection broke rather than that a statement failed.
        if error.sqlstate is None or error.sqlstate.startswith("08"):
            raise Unavailable(_unavailable(url, error)) from error
        raise StoreError(f"the database at {_hidden(url)!r} refused: {error}") from error
    except errors.UndefinedTable as error:
        raise StoreError(
            f"the database at {_hidden(url)!r} lacks a table: {error}. Run 'nightshift db upgrade'."
        ) from error
    except psycopg.Error as error:
        raise StoreError(
            f"the database at {_hidden(url)!r} refused a statement: {error}"
        ) from error


def _unavailable(url: str, error: Exception) -> str:
    return (
        f"the database at {_hidden(url)!r} cannot be reached or is too busy: {str(error).strip()}. "
        "This transaction was not written; the same call may be repeated once the server answers."
    )


def upgrade(conn: Conn, folder: Path = MIGRATIONS) -> list[str]:
    """Apply the migrations that the database lacks, in order and all in this transaction; their names.

    Upgrades in several processes wait for each other.

    Raises:
        StoreError: an applied migration was edited, or the database is newer than this program.
    """
    conn.execute("select pg_advisory_xact_lock(%s)", (UPGRADE_LOCK,))
    conn.execute(MIGRATION_TABLE)
    files = {int(path.name[:4]): path for path in sorted(folder.glob("[0-9][0-9][0-9][0-9]_*.sql"))}
    applied = {number: (name, made) for number, name, made in conn.execute(APPLIED)}
    for number, (name, made) in applied.items():
        if number not in files:
            raise StoreError(
                f"the database has migration {name!r}, which this program does not know: it was upgraded "
                "by a later version. Install that version, or restore a backup."
            )
        if digest(files[number].read_text()) != made:
            raise StoreError(
                f"migration {files[number].name!r} was changed after it was applied as {name!r}. "
                "Restore the file and put the change into a migration of its own."
            )
    lacking = [number for number in sorted(files) if number not in applied]
    for number in lacking:
        text = files[number].read_text()
        conn.execute(text)  # pyright: ignore[reportArgumentType, reportCallIssue]
        conn.execute(RECORD_APPLIED, (number, files[number].name, digest(text)))
    return [files[number].name for number in lacking]


def copy_rows(
    conn: Conn, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Copy rows into a table; a key that is there already is an error."""
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    statement = sql.SQL("copy {} ({}) from stdin").format(sql.Identifier(table), names)
    with conn.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)


def insert_new(
    conn: Conn, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> int:
    """Copy rows into a table, leaving out those whose key is there already; how many were new."""
    return upsert(conn, table, columns, rows, "on conflict do nothing")


def upsert(
    conn: Conn, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], change: str
) -> int:
    """Copy rows into a table; `change` is the `on conflict` clause for rows already there."""
    if not rows:
        return 0
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    target, incoming = sql.Identifier(table), sql.Identifier(f"incoming_{table}")
    shape = sql.SQL("create temp table {} on commit drop as select {} from {} with no data")
    conn.execute(shape.format(incoming, names, target))
    copy_rows(conn, f"incoming_{table}", columns, rows)
    move = sql.SQL("insert into {} ({}) select {} from {} {}")
    clause = sql.SQL(change)  # pyright: ignore[reportArgumentType]
    done = conn.execute(move.format(target, names, names, incoming, clause))
    conn.execute(sql.SQL("drop table {}").format(incoming))
    return done.rowcount


def bound(values: Mapping[str, Any]) -> tuple[sql.Composable, list[Any]]:
    """A `where` clause that asks for equality in every column whose value is not None, and its parameters."""
    given = {column: value for column, value in values.items() if value is not None}
    if not given:
        return sql.SQL(""), []
    tests = [sql.SQL("{} = %s").format(sql.Identifier(column)) for column in given]
    return sql.SQL("where ") + sql.SQL(" and ").join(tests), list(given.values())
