"""Connections to PostgreSQL with a limit on every wait.

| what stands still                                 | after | noticed by                                           |
| ------------------------------------------------- | ----- | ---------------------------------------------------- |
| the server, where a connection is to be opened    | 5 s   | the driver: `connect_timeout`                        |
| a lock that another transaction has               | 5 s   | the server: `lock_timeout`                           |
| a statement                                       | 10 s  | the server: `statement_timeout`                      |
| the network, or the server's host                 | 10 s  | the system: `tcp_user_timeout`                       |
| the server alone: a SIGSTOP, a frozen container   | 15 s  | the driver: `_answered_in_time`                      |
| another client of refold, amid a transaction      | 30 s  | the server: `idle_in_transaction_session_timeout`    |

The last limit does not hold after a pipeline of the driver's, whose last message ends the server's clock. So each
pipeline is a whole transaction.

The server's limits are set within each transaction, by `SAFELY`: a pooler such as PgBouncer hands a session from one
client to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from sqlalchemy import Connection, Dialect, Engine, create_engine, event
from sqlalchemy.engine import URL

ANSWER_S = 15.0
"""How long the answer to a statement is waited for, in seconds; longer than the server lets one take."""

SAFELY = (
    # Commits wait for the disk even if the server's default is asynchronous: a crash must not lose what was committed.
    "SELECT set_config('synchronous_commit', 'on', true), set_config('lock_timeout', '5s', true), "
    "set_config('statement_timeout', '10s', true), set_config('idle_in_transaction_session_timeout', '30s', true)"
)
"""The statement that begins each transaction, and holds until it ends."""


def engine_of(url: URL, given: Mapping[str, Any], **options: Any) -> Engine:
    """An engine for a database; nothing is connected yet.

    Args:
        url: `postgresql+psycopg://…`; its parameters count before refold's.
        given: Parameters of the driver's connections, besides those that every one has.
        options: Options of SQLAlchemy's engine.

    Raises:
        ModuleNotFoundError: The driver is not installed.
    """
    # Without an encoding the driver gives bytes for the texts of a database that has none. Statements that it prepares
    # are in a session, which a pooler hands to another client.
    all_of_them = {"connect_timeout": 5, "tcp_user_timeout": 10_000, "client_encoding": "utf8"}
    all_of_them |= {"prepare_threshold": None, **given}
    missing = {name: value for name, value in all_of_them.items() if name not in url.query}
    engine = create_engine(url, connect_args=missing, **options)
    event.listen(engine, "do_connect", _connected)
    return engine


@contextmanager
def unhurried(connection: Connection) -> Iterator[None]:
    """Within it, answers take as long as they take: for statements that read every row of a table."""
    driver: Any = connection.connection.driver_connection
    limited = driver.__dict__.pop("wait")
    try:
        yield
    finally:
        driver.wait = limited


def _connected(dialect: Dialect, _record: object, args: list[Any], given: dict[str, Any]) -> Any:
    connection: Any = dialect.connect(*args, **given)
    connection.wait = _answered_in_time(connection, connection.wait, dialect.loaded_dbapi.OperationalError)
    return connection


def _answered_in_time(connection: Any, wait: Any, failed: type[Exception]) -> Any:
    """The driver's `Connection.wait`, through which every statement goes, with a limit where it has none."""

    def limited(answer: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        until = monotonic() + ANSWER_S
        try:
            return wait(answer, interval=interval, timeout=ANSWER_S if timeout is None else timeout)
        except failed as error:
            if timeout is not None or monotonic() < until:
                raise
            connection.pgconn.finish()  # the answer would be taken for that of the next statement
            raise failed(f"the server has not answered for {ANSWER_S:g} s") from error

    return limited
