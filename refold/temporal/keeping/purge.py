"""Purging: deletes what ended tasks left behind, and says what stays, where and why.

The order makes a purge that was interrupted repeatable: what says what belongs to a task goes after what belongs to it.
So its histories go last, and of several runs the newest one last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from shlex import quote
from typing import Protocol
from uuid import uuid4

from temporalio.api.common.v1 import WorkflowExecution as Execution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import WorkflowExecution, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from refold.core.lifecycle import TaskState
from refold.core.values import Value, lean
from refold.effects.keepers import ORIGIN_MEMO, recovers
from refold.engine import EngineError, OffspringView, TaskFilter, TaskNotFound
from refold.engine.arguments import methods_take
from refold.temporal.client import lineage
from refold.temporal.client.connection import Connection
from refold.temporal.client.errors import server_refused
from refold.temporal.client.index import search
from refold.temporal.data.payloads import PartsCodec
from refold.temporal.data.search_attributes import quoted
from refold.temporal.data.storage import ENV as STORAGE_ENV
from refold.temporal.data.storage import WRITTEN_LATELY, Storage
from refold.temporal.keeping.references import References, references_of, used_elsewhere
from refold.temporal.keeping.runs import runs_of
from refold.temporal.webhooks.names import WORKFLOW as WEBHOOK
from refold.temporal.webhooks.names import workflow_id as webhook_id

SETTLED_S = 60.0
"""How long before the search for other users of a value it must have been written last, in seconds by the storage's
clock: who wrote an equal value later may not have it in history yet."""


class Left(Value):
    """Something that stays.

    Attributes:
        what: What it is, with its key or id.
        where: The server, folder or database.
        why: Why it stays, and what to do.
    """

    what: str
    where: str
    why: str


class Purged(Value):
    """What became of one task.

    Attributes:
        gone: Its histories are deleted; False where the task stays.
        deleted: How many runs, values, receipts, refusals and webhooks were deleted, or would be.
        left: What stays.
    """

    task_id: str
    gone: bool
    deleted: dict[str, int] = lean(factory=dict)
    left: tuple[Left, ...] = lean(())


class ReceiptsOfTask(Protocol):
    """The ledger, as far as a purge needs it."""

    @property
    def place(self) -> str:
        """The file or database."""

    async def purge(self, task_id: str, *, kept: str, dry: bool) -> tuple[dict[str, int], Sequence[tuple[str, str]]]:
        """Delete a task's receipts and its refused updates, or count them.

        Args:
            task_id: The task.
            kept: Why all receipts stay; empty if they need not.
            dry: Only count.

        Returns:
            How many `receipts` and `refusals` were deleted, or would be; and for each receipt that stays, which, and
            why.
        """


@dataclass(slots=True, kw_only=True)
class _Ended:
    """An ended task that can be purged, and what belongs to it.

    Attributes:
        of: The task for which it is purged: the task itself, or the one that it is a part of.
        delivering: The webhooks that have updates of the task to deliver.
        recovers: The task that this one recovers, if that one is still there; else empty.
    """

    task_id: str
    of: str
    runs: list[str]
    webhooks: list[tuple[str, str]]
    refers: References
    delivering: list[str] = field(default_factory=list)
    recovers: str = ""
    left: list[Left] = field(default_factory=list)


@methods_take()
class Purge:
    """Purges tasks of one server."""

    def __init__(self, connection: Connection, receipts: ReceiptsOfTask | None = None) -> None:
        """A purge.

        Args:
            connection: To the server; its client has refold's data converter.
            receipts: The ledger; None leaves receipts where they are.
        """
        codec = connection.client.data_converter.payload_codec
        if not isinstance(codec, PartsCodec):
            raise EngineError("a purge needs refold's data converter, which knows the storage; use `refold purge`")
        self.connection, self.client = connection, connection.client
        self.storage: Storage = codec.storage
        self.receipts = receipts
        self.server = f"namespace {self.client.namespace!r} of {self.client.service_client.config.target_host}"

    async def owned(self, owner: str, ended_before: datetime | None) -> list[str]:
        """The tasks of an owner, as far as the index knows them; with `ended_before` only those that ended by then.

        The index still lists an earlier run of a task that was reset, whose last run may be open or have ended later:
        give `run` the same `ended_before`.
        """
        query = search.tasks(TaskFilter(owner=owner))
        if ended_before is not None:
            query += f" AND ExecutionStatus != 'Running' AND {search.until('CloseTime', ended_before)}"
        try:
            return [one.id async for one in self.client.list_workflows(query)]
        except RPCError as error:
            raise server_refused(error, "list tasks") from None

    async def run(
        self, task_ids: Iterable[str], *, dry: bool, listed: bool = False, ended_before: datetime | None = None
    ) -> AsyncIterator[Purged]:
        """Purge tasks with their parts, one after another.

        Args:
            task_ids: The tasks.
            dry: Delete nothing, and report what would be.
            listed: They were found by the index, which may still list tasks that are gone: these are left out.
            ended_before: Leave out the tasks that had not ended by then; None takes a task whenever it ended.

        Raises:
            TaskNotFound: There is no such task, and it was not `listed`; nothing is deleted.
            EngineError: The server or the ledger refuses, or does not answer; those reported so far are gone.
        """
        todo, stays = list[_Ended](), list[Purged]()
        for task_id in sorted(dict.fromkeys(task_ids), key=len):  # its parts and what recovers it have longer ids
            if any(one.task_id == task_id for one in todo):
                continue
            try:
                found, why = await self._ended(task_id, ended_before)
            except TaskNotFound:
                if not listed:
                    raise
                continue
            todo += found
            stays += [] if why is None else [Purged(task_id=task_id, gone=False, left=(why,))]
        for report in stays:
            yield report
        if not todo:
            return
        if not dry and (why := await self._not_allowed()) is not None:
            for one in todo:
                yield Purged(task_id=one.task_id, gone=False, left=(why,))
            return
        if not dry and self.receipts is not None:
            # Found out with a task that does not exist: values would be gone by then, and the task half there.
            await self.receipts.purge(f"refold-purge-{uuid4()}", kept="", dry=False)
        since = 0.0 if dry else await self.storage.now() - SETTLED_S
        shared = {key for one in todo for key in one.refers.shared}
        purged = {one.task_id for one in todo} | {id for one in todo for id, _ in one.webhooks}
        used = await used_elsewhere(self.client, shared, purged) if shared else {}
        going, waiting = {one.of for one in todo}, dict[str, list[Left]]()
        for one in todo:
            if why_not := self._leads(one, going) + ([] if dry else await self._written_lately(one, used, since)):
                waiting.setdefault(one.of, []).extend(why_not)
                going.discard(one.of)
        for task_id, left in waiting.items():
            yield Purged(task_id=task_id, gone=False, left=tuple(left))
        for one in [one for one in todo if one.of in waiting]:
            used |= dict.fromkeys(one.refers.shared, one.task_id)
            purged.discard(one.task_id)
        for one in [one for one in todo if one.of not in waiting]:
            yield await self._purge(one, purged, used, since, dry=dry)

    # --- what there is

    async def _ended(self, task_id: str, ended_before: datetime | None) -> tuple[list[_Ended], Left | None]:
        """A task's parts and the task, where all of them have ended; else why it stays.

        Nothing of a task that had not ended by `ended_before`.
        """
        description = await self.connection.describe(task_id)
        if ended_before is not None and not (description.close_time and description.close_time < ended_before):
            return [], None
        if description.status is WorkflowExecutionStatus.RUNNING:
            return [], self._stays(task_id, f"it is open; `refold cancel {quote(task_id)}` ends it")
        if description.parent_id is not None and (why := await self._needed_by(description.parent_id)):
            return [], self._stays(task_id, f"it is a part of {description.parent_id!r}, which {why}")
        parts = await self._parts(task_id)
        for part in parts:
            if await self._is_open(part):
                return [], self._stays(task_id, f"its part {part!r} is open; `refold cancel {quote(part)}` ends it")
        found = [await self._collected(one, task_id) for one in (*sorted(parts, key=len, reverse=True), task_id)]
        if id := next((id for one in found for id in one.delivering), ""):
            why = f"its webhook {id!r} still delivers updates; purge again when it has, or delete the webhook"
            end = f"`temporal workflow terminate --workflow-id {quote(id)}` ends it"
            return [], self._stays(task_id, f"{why}. Where no gateway runs any more, {end}")
        found[-1].recovers = await self._recovers(description)
        way_out = f"`temporal workflow delete --workflow-id {quote(task_id)}` deletes the history alone"
        if locked := next((one.refers.locked for one in found if one.refers.locked), ""):
            why = f"which stored values belong to it cannot be read here: {locked}. If that is lost, {way_out}"
            return [], self._stays(task_id, why)
        for key in sorted({key for one in found for key in one.refers.missing}):
            # One that may have been here was deleted by a purge that was interrupted.
            if not await self.storage.may_have_held(key):
                why = f"its value {key} was never in {self.storage.place}; set {STORAGE_ENV} as it is for the workers"
                return [], self._stays(task_id, f"{why}. If the value is lost, {way_out}")
        return found, None

    async def _parts(self, task_id: str) -> list[str]:
        """The ids of a task's parts, of theirs, as far as the index knows them; and of what recovers them.

        The fork of a part is a task of its own, though its id begins with the part's.
        """
        listed = await self._listed_below(task_id + "/")
        origins = {one.id: await one.memo_value(ORIGIN_MEMO, None) for one in listed}
        forks = [id for id, origin in origins.items() if origin is not None and origin["how"] == "forked"]
        of_forks = tuple(f"{fork}{more}" for fork in forks for more in ("/", "."))
        parts = [id for id in origins if id not in forks and not id.startswith(of_forks)]
        for part in parts:  # grows meanwhile: a recovery may be recovered, too
            recoveries = await lineage.recoveries(self.connection, part)
            parts += [one.task_id for one in recoveries if one.task_id not in parts]
        return parts

    async def _needed_by(self, task_id: str) -> str:
        """Why a task needs its part; empty if it does not."""
        try:
            description = await self.connection.describe(task_id)
        except TaskNotFound:
            return ""
        if description.status is WorkflowExecutionStatus.RUNNING:
            return "is open and may ask for it"
        if search.as_shown(description)[0] is TaskState.FAILED:
            return "did not complete: its recovery would repeat what the part did; purge that one, too"
        return ""

    async def _recovers(self, description: WorkflowExecutionDescription) -> str:
        try:
            failed = await self.connection.describe(description.id.rpartition(".r")[0])
        except TaskNotFound:
            return ""
        return failed.id if await recovers(description, failed) else ""

    async def _collected(self, task_id: str, of: str) -> _Ended:
        try:
            runs = await runs_of(self.connection, task_id)
        except TaskNotFound:
            runs = []  # a part that the index still lists
        # No later run names one that was reset, or that had the id before the task.
        others = [one.run_id for one in await self._listed(f"= {quoted(task_id)}") if one.id == task_id]
        runs = [*(run_id for run_id in others if run_id not in runs), *runs]
        refers = await references_of(self.client, task_id, runs)
        ended = _Ended(task_id=task_id, of=of, runs=runs, webhooks=[], refers=refers)
        # One that was set again has several runs, each with the receiver's secrets.
        listed = await self._listed_below(webhook_id(task_id, ""), f" AND WorkflowType = '{WEBHOOK}'")
        for id in dict.fromkeys(one.id for one in listed):
            if await self._is_open(id):
                ended.delivering.append(id)
            ended.webhooks += [(id, one.run_id) for one in listed if one.id == id]
        return ended

    async def _listed_below(self, prefix: str, only: str = "") -> list[WorkflowExecution]:
        """The runs of workflows, by their ids, which begin with the prefix."""
        listed = await self._listed(f"STARTS_WITH {quoted(prefix)}{only}")
        # A server on SQLite takes `Trip` and `trip` for the same.
        return [one for one in listed if one.id.startswith(prefix)]

    async def _listed(self, which: str) -> list[WorkflowExecution]:
        """The runs of the workflows whose id meets a condition, such as `STARTS_WITH 'T'`."""
        try:
            return [one async for one in self.client.list_workflows(f"WorkflowId {which}")]
        except RPCError as error:
            raise server_refused(error, "list tasks") from None

    async def _is_open(self, id: str) -> bool:
        try:
            found = await self.client.get_workflow_handle(id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise server_refused(error, f"describe {id!r}") from None
        return found.status is WorkflowExecutionStatus.RUNNING

    def _stays(self, task_id: str, why: str) -> Left:
        return Left(what=f"task {task_id}", where=self.server, why=why)

    def _leads(self, one: _Ended, going: set[str]) -> list[Left]:
        """This task, if it must stay: without it, the failed task that it recovers could be recovered once more."""
        if not one.recovers or one.recovers in going:
            return []
        why = f"it goes on for {one.recovers!r}, which could be recovered once more without it; purge that one, too"
        return [self._stays(one.task_id, why)]

    async def _written_lately(self, one: _Ended, used: dict[str, str], since: float) -> list[Left]:
        """The values for which the task must wait, since they were written just now."""
        keys = [key for key in sorted(one.refers.shared - used.keys()) if await self.storage.used(key, since=since)]
        return [Left(what=f"value {key}", where=self.storage.place, why=WRITTEN_LATELY) for key in keys]

    # --- deletion

    async def _purge(self, one: _Ended, purged: set[str], used: dict[str, str], since: float, *, dry: bool) -> Purged:
        deleted = {"runs": len(one.runs), "webhooks": len({id for id, _ in one.webhooks})}
        deleted["values"], later = await self._values(one, used, since, dry=dry)
        if later:
            return Purged(task_id=one.task_id, gone=False, left=tuple(one.left))
        deleted |= await self._receipts(one, purged, dry=dry)
        deleted = {what: count for what, count in deleted.items() if count}
        if not dry:
            for id, run_id in (*one.webhooks, *((one.task_id, run_id) for run_id in one.runs)):
                await self._delete(id, run_id)
        return Purged(task_id=one.task_id, gone=not dry, deleted=deleted, left=tuple(one.left))

    async def _receipts(self, one: _Ended, purged: set[str], *, dry: bool) -> dict[str, int]:
        for other in [other for other in await self._offspring(one.task_id) if other.task_id not in purged]:
            why = f"it was {other.how} from entry {other.seq}, and holds what it began with; purge it, too"
            one.left.append(Left(what=f"task {other.task_id}", where=self.server, why=why))
        if self.receipts is None:
            return {}
        recovered = await self._goes_on(one.of, purged)
        kept = f"task {recovered!r} was recovered from this one and goes on with its effects" if recovered else ""
        counts, needed = await self.receipts.purge(one.task_id, kept=kept, dry=dry)
        one.left += [Left(what=what, where=self.receipts.place, why=why) for what, why in needed]
        return counts

    async def _goes_on(self, task_id: str, purged: set[str]) -> str:
        """A task that is not purged and recovers this one, directly or through purged tasks; empty if there is none."""
        for other in await self._offspring(task_id):
            if other.how == "recovered":
                stays = await self._goes_on(other.task_id, purged) if other.task_id in purged else other.task_id
                if stays:
                    return stays
        return ""

    async def _offspring(self, task_id: str) -> list[OffspringView]:
        """The tasks that go on from this one; recoveries also where the index does not list them yet."""
        listed = await lineage.offspring(self.connection, task_id)
        ids = {other.task_id for other in listed}
        recoveries = await lineage.recoveries(self.connection, task_id)
        return [*listed, *(other for other in recoveries if other.task_id not in ids)]

    async def _values(self, one: _Ended, used: dict[str, str], since: float, *, dry: bool) -> tuple[int, bool]:
        """How many values were deleted; and whether the task must wait, since one was written just now."""
        place, count, later = self.storage.place, 0, False
        for key, why in one.refers.unread.items():
            one.left.append(Left(what=f"value {key}", where=place, why=f"it cannot be read, nor what it holds: {why}"))
        for key in sorted(one.refers.shared):
            if key in used:
                why = f"an equal value belongs to {used[key]!r}"
                one.left.append(Left(what=f"value {key}", where=place, why=why))
                continue
            stays = "" if dry else await self.storage.remove(key, unused_since=since)
            if stays:
                later = later or stays == WRITTEN_LATELY
                one.left.append(Left(what=f"value {key}", where=place, why=stays))
            count += not stays
        if later:
            return count, True
        for key in (*sorted(one.refers.own), *sorted(one.refers.holders)):
            stays = "" if dry else await self.storage.remove(key, unused_since=None)
            if stays:
                one.left.append(Left(what=f"value {key}", where=place, why=stays))
            count += not stays
        return count, False

    async def _not_allowed(self) -> Left | None:
        """Why nothing can be deleted; found out with a workflow that does not exist, before anything is."""
        try:
            await self._delete(f"refold-purge-{uuid4()}", str(uuid4()))
        except RPCError as error:
            why = f"no permission to delete histories ({error.message}); the namespace's retention deletes them"
            return Left(what="everything", where=self.server, why=why)
        return None

    async def _delete(self, id: str, run_id: str) -> None:
        request = DeleteWorkflowExecutionRequest(
            namespace=self.client.namespace, workflow_execution=Execution(workflow_id=id, run_id=run_id)
        )
        try:
            await self.client.workflow_service.delete_workflow_execution(request, retry=True)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return
            if error.status in (
                RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.UNAUTHENTICATED
            ):  # fmt: skip
                raise
            raise server_refused(error, f"delete {id!r}") from None
