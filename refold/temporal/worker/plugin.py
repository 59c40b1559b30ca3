"""refold as a plugin of the Temporal SDK, for existing programs and for refold's own worker.

plugin = RefoldPlugin(skills=[workflows.refund], tools=[charge_card])
client = await Client.connect(address, plugins=[plugin])     # adds refold's data converter
worker = Worker(client, task_queue="refold")                 # adds refold's workflows and activities
replayer = Replayer(workflows=[], plugins=[plugin])
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import temporalio
from temporalio.client import Client, WorkflowHistory
from temporalio.common import VersioningBehavior
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    Interceptor,
    Replayer,
    ReplayerConfig,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkerConfig,
    WorkflowReplayResult,
    WorkflowRunner,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from refold.core.errors import DefinitionError
from refold.effects.activities import Effects
from refold.effects.attempt import LEASES
from refold.effects.callbacks import make_address
from refold.effects.ledger.refused import RefusalRecord, Refusals
from refold.effects.mcp.servers import McpServer
from refold.effects.notify import Notifier
from refold.effects.threads import TOOL_THREADS
from refold.engine.arguments import Count, defining, takes
from refold.seen.logs import logger
from refold.static.models import models_named
from refold.temporal.data.absent import reading_inputs
from refold.temporal.data.codec import CodecSeal, codec_of, fit
from refold.temporal.data.payloads import RefoldConverter, codec_in, data_converter
from refold.temporal.data.storage import Storage
from refold.temporal.data.storage_setting import storage_from_env
from refold.temporal.recorded.reading import FromReplay, FromServer
from refold.temporal.seen.runtime import begin_at_zero, follow
from refold.temporal.worker import profile
from refold.temporal.worker.activation.committed import Unsandboxed, missing
from refold.temporal.worker.build import build_of_process
from refold.temporal.worker.holding import HeldOutcomes
from refold.temporal.worker.identity import identify, with_another_ledger
from refold.temporal.worker.logs import keep_short, keep_texts_out
from refold.temporal.worker.profile import DEFAULT, Profile
from refold.temporal.worker.refusals import refusals
from refold.temporal.worker.registry import UnknownSkillWorkflow, refuse, workflows_of
from refold.temporal.worker.sandboxed.sandbox import Sandbox, sandbox
from refold.temporal.worker.short.ways import DURABILITY, durability_of, in_ledger, say
from refold.temporal.worker.task.define import DEFINITION
from refold.temporal.worker.task.display import REFUSED, SILENT
from refold.temporal.worker.task.workflow import FAILURES, SkillWorkflow

if TYPE_CHECKING:
    from refold.effects.ledger.ledger import Ledger

log = logger(__name__)

HEARTBEAT_THROTTLE = timedelta(milliseconds=100)
"""The SDK's least pause between heartbeats, short because heartbeats carry a model's streamed text."""

_UNSAID = (None, VersioningBehavior.UNSPECIFIED)  # what a new version of a deployment does with a workflow


class RefoldPlugin(SimplePlugin):
    """Client, worker and replayer settings for refold's tasks.

    Attributes:
        skill_ids: The ids of the skills that a worker with this plugin serves.
        storage: The storage for large values.
        codec: The codec that was given.
        replayed: What the history holds that a `Replayer` with this plugin replays, and what was found in it.
    """

    @takes(defining("RefoldPlugin", "plugin"))
    def __init__(
        self,
        skills: Sequence[Any] = (),
        tools: Sequence[Callable[..., Any]] = (),
        *,
        model: str | None = None,
        storage: Storage | None = None,
        recovery: Profile = DEFAULT,
        sandboxed: bool = True,
        mcp: Sequence[McpServer] | None = None,
        codec: PayloadCodec | None = None,
        threads: Count = TOOL_THREADS,
        notifier: Notifier | None = None,
        durability: str | None = None,
    ) -> None:
        """Check the skills and tools, and prepare what a worker needs.

        Args:
            skills: Skills, their workflow classes, or modules that hold them.
            tools: Functions declared with `@tool`.
            model: `provider:name` for model calls that name none; None takes `REFOLD_MODEL`, else the scripted one.
            storage: For large values; None takes `REFOLD_STORAGE`.
            recovery: The timeouts that detect a lost worker; the same for the whole process.
            sandboxed: Run skills in Temporal's sandbox. Without it a replay takes about an eighth less time, but only
                `refold check` and replay detect an impure skill.
            mcp: MCP servers whose tools skills may call; None takes those in the file that `REFOLD_MCP` names.
            codec: Encrypts all that refold writes; None takes the client's own, else the one that `REFOLD_CODEC` names.
            threads: The most tools that are a plain `def` running at once.
            notifier: Tells people of gates that wait for them; None takes `REFOLD_NOTIFY_URL`, else the worker's log.
            durability: `ledger` keeps the outcomes of all skills' effects in the ledger first, and in history once
                the workflow task ends: faster, for workers that share one ledger. None takes `REFOLD_DURABILITY`, else
                `history`, where each skill and each tool says for itself.

        Raises:
            DefinitionError: A skill or tool is defined wrongly, a skill has no workflow, two share a name, or the
                durability is none.
            CodecError: The codec is refused.
        """
        classes = self._classes = workflows_of(skills)
        self.skill_ids = [cls.type_name for cls in classes]
        self.replayed = FromReplay()
        self._runner = (sandbox(classes, tools) if sandboxed else Unsandboxed()).reading(self.replayed)
        self.storage = storage or storage_from_env()
        self.codec = None if codec is None else fit(codec)
        self.recovery = recovery
        self._refused = RefusalRecord(self._refused_table)
        self._seal: CodecSeal | None = None
        self._ledger_id: str | None = None
        middleware = {cls.type_name: cls.skill.options.middleware for cls in classes}
        self._tools = tuple(tools)
        self._short = durability_of(durability) == DURABILITY
        self._effects: Effects | None = None
        if classes or tools or mcp:
            self._effects = Effects(
                tools,
                model=model,
                mcp=mcp,
                middleware=middleware,
                threads=threads,
                notifier=notifier,
                records=self._short
                or bool(in_ledger(self._tools))
                or any(cls.skill.options.durability == DURABILITY for cls in classes),
            )
            self._effects.local_lease_s = LEASES * recovery.heartbeat.total_seconds()
        super().__init__(
            "refold",
            data_converter=self._converter,
            workflows=classes,
            activities=self._effects.activities if self._effects else [],
            workflow_runner=self._runner_beside,
            workflow_failure_exception_types=FAILURES,
            run_context=self._at_work,
        )

    def _converter(self, given: DataConverter | None) -> DataConverter:
        return data_converter(self.storage, codec_of(given, RefoldConverter, self.codec))

    def _runner_beside(self, given: WorkflowRunner | None) -> WorkflowRunner:
        """The runner for a worker or a replayer whose program has set one, which runs its own workflows, too."""
        if isinstance(self._runner, Sandbox):
            if isinstance(given, UnsandboxedWorkflowRunner):
                return Unsandboxed(self.replayed)
            if isinstance(given, SandboxedWorkflowRunner):
                return self._runner.beside(given)
        return self._runner

    def refuse_unfit(self, runner: WorkflowRunner | None = None) -> None:
        """Check the registrations at a worker's start, within a running event loop.

        Args:
            runner: Loads the workflows; None takes the plugin's own.

        Raises:
            DefinitionError: A registered skill or tool uses a tool, skill or MCP server that is not registered, or
                Temporal's sandbox cannot load a skill's module.
        """
        servers = None if self._effects is None else self._effects.servers or None
        refuse(refusals(self._classes, self._tools, servers=servers, runner=runner or self._runner))

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of the worker's receipts; None if no tool needs one."""
        return None if self._effects is None else self._effects.ledger

    async def unusable_models(self) -> list[str]:
        """Why each model that cannot be used cannot: the worker's own, and those that agents and skills' code name.

        Called while the worker runs.
        """
        if self._effects is None:
            return []
        names = {name for cls in self._classes for name in cls.skill.options.models}
        with suppress(Exception):  # code that cannot be analyzed costs a warning, not the worker
            names |= await asyncio.to_thread(models_named, {cls.__module__ for cls in self._classes})
        return await self._effects.unusable_models(names)

    async def with_another_ledger(self, worker: Worker) -> list[str]:
        """See `refold.temporal.worker.identity`."""
        return await with_another_ledger(worker, self.ledger)

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """See the SDK. What the program has set stays, but for a longer pause between heartbeats, and the worker's
        identity, which ends with a mark of its ledger if it has one.

        Raises:
            DefinitionError: As `refuse_unfit`; the worker has another `RefoldPlugin` that serves something; or
                `Ledger.refuse_remote` refuses the ledger.
            LedgerUnavailable: A tool needs the ledger, which cannot be used.
            CodecError: The client was connected without refold's converter.
        """
        self._refuse_another_plugin(config)
        config = super().configure_worker(config)
        _pin_tasks(config)
        if config.get("deployment_config") is None and not config.get("build_id"):
            config["build_id"] = build_of_process()
        self.refuse_unfit(config.get("workflow_runner"))
        follow(config["client"])
        begin_at_zero(self.skill_ids)
        keep_short()
        self._connect_effects(config)
        ledger = self._known_ledger(_server_of(config["client"]))
        say(config["client"].namespace, config["task_queue"], short=self._short, tools=in_ledger(self._tools))
        _cap_heartbeat_throttle(config)
        _warn_of_unknown_sdk()
        if self.skill_ids:
            REFUSED[config["client"].namespace, config["task_queue"]] = self._refused.note
        _compare_with_history(config, identity=identify(config, ledger))
        self._leave_unknown_skills(config)
        return config

    def _refuse_another_plugin(self, config: WorkerConfig) -> None:
        if self._effects is not None and make_address in config.get("activities", ()):
            problem = (
                "it has two RefoldPlugins with skills or tools, for a worker has those of its client, too; "
                "give the client one with all of them, and the worker none"
            )
            raise DefinitionError(config["task_queue"], [problem], what="worker of task queue")

    def _connect_effects(self, config: WorkerConfig) -> None:
        """Give the effects the client's codec and server."""
        if self._effects is None:
            return
        codec = codec_in(config["client"].data_converter)
        self._effects.seal = self._seal = None if codec is None else CodecSeal(codec)
        if codec is not None:
            keep_texts_out()
        if isinstance(converter := config["client"].data_converter, RefoldConverter):
            of_client = config["client"].config(active_config=True)["interceptors"]
            outermost = not any(isinstance(one, Interceptor) for one in of_client)
            held = HeldOutcomes(converter, self._effects.heartbeats, outermost=outermost)
            config["interceptors"] = [held, *config.get("interceptors", ())]
        self._effects.server = _server_of(config["client"])

    async def know_ledger(self, client: Client) -> None:
        """Ask the ledger for its id before a worker of this client is made, which would block the event loop meanwhile.

        Raises:
            DefinitionError: As `configure_worker`.
            LedgerUnavailable: As `configure_worker`.
        """
        await asyncio.to_thread(self._known_ledger, _server_of(client))

    def _known_ledger(self, server: str) -> str | None:
        """The id of the ledger, which is made if it is not there yet; None if no tool needs one."""
        if self.ledger is None:
            return None
        self.ledger.refuse_remote(server)
        if self._ledger_id is None:
            self._ledger_id = self.ledger.store.identity()
        return self._ledger_id

    def _leave_unknown_skills(self, config: WorkerConfig) -> None:
        """Add a dynamic workflow that leaves tasks of unknown skills to other workers, unless the program has one."""
        workflows = list(config.get("workflows") or [])
        if self.skill_ids and not any(_is_dynamic(cls) for cls in workflows):
            config["workflows"] = [*workflows, UnknownSkillWorkflow]
            UnknownSkillWorkflow.known[config["task_queue"]] = tuple(self.skill_ids)

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """See the SDK. Inputs that cannot be got are read as a worker reads them."""
        config = super().configure_replayer(config)
        if (converter := config.get("data_converter")) is not None:
            config["data_converter"] = reading_inputs(converter, self.skill_ids)
        return config

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        """See the SDK. Inputs that cannot be got do not fail the workflow task (`refold.temporal.data.absent`), and
        effects within workflow tasks pass the interceptors that activities do."""
        reader: Any = getattr(worker, "_workflow_worker", None)
        if isinstance(converter := getattr(reader, "_data_converter", None), DataConverter):
            reader._data_converter = reading_inputs(converter, self.skill_ids)
        if self._effects is not None:
            config = worker.config(active_config=True)
            given = [*worker.client.config(active_config=True)["interceptors"], *config.get("interceptors", ())]
            # What is performed within a local activity is sent with that.
            self._effects.within.interceptors = [
                one for one in given if isinstance(one, Interceptor) and not isinstance(one, HeldOutcomes)
            ]
        try:
            await super().run_worker(worker, next)
        except BaseException:
            stopped = getattr(worker, "_shutdown_complete_event", None)
            if stopped is not None and not worker.is_running:
                stopped.set()  # else `async with` would wait for ever for a worker that has not begun
            raise

    @asynccontextmanager
    async def run_replayer(
        self,
        replayer: Replayer,
        histories: AsyncIterator[WorkflowHistory],
        next: Callable[
            [Replayer, AsyncIterator[WorkflowHistory]],
            AbstractAsyncContextManager[AsyncIterator[WorkflowReplayResult]],
        ],
    ) -> AsyncIterator[AsyncIterator[WorkflowReplayResult]]:
        """See the SDK. Opens no effects, since a replay performs none; compares entries, where history has marks."""
        converter = self._converter(replayer.config().get("data_converter"))  # the SDK's is without storage here

        async def given() -> AsyncIterator[WorkflowHistory]:
            async for history in histories:
                await self.replayed.give(history.events, converter)
                yield history

        with silently(given()) as silent:
            async with next(replayer, silent) as results:
                yield results

    @asynccontextmanager
    async def _at_work(self) -> AsyncIterator[None]:
        profile.use(self.recovery)
        await self.storage.check()
        if self._effects is None:
            yield
            return
        self._refused.__enter__()
        try:
            async with self._effects:
                if self.ledger is not None:
                    await self.ledger.run(self.ledger.look, "")  # else effects would wait in silence for a wrong one
                yield
        finally:
            await asyncio.to_thread(self._refused.__exit__)  # it writes what waits

    def _refused_table(self) -> Refusals:
        # Imported once an update is refused: a worker without receipts does not load a database's library.
        from refold.effects.ledger.refused_table import RefusedTable
        from refold.effects.ledger.store import store_from_env

        store = store_from_env()
        store.seal = self._seal
        return RefusedTable(store)


@contextmanager
def silently(histories: AsyncIterator[WorkflowHistory]) -> Iterator[AsyncIterator[WorkflowHistory]]:
    """Histories to replay, whose tasks log nothing inside the block."""
    runs: set[str] = set()

    async def each() -> AsyncIterator[WorkflowHistory]:
        async for history in histories:
            runs.add(history.run_id)
            SILENT.add(history.run_id)
            yield history

    try:
        yield each()
    finally:
        SILENT.difference_update(runs)


def _cap_heartbeat_throttle(config: WorkerConfig) -> None:
    # The SDK fills in its default beforehand, so a value that the program chose looks the same.
    throttle = config.get("max_heartbeat_throttle_interval", HEARTBEAT_THROTTLE)
    config["max_heartbeat_throttle_interval"] = min(throttle, HEARTBEAT_THROTTLE)


def _server_of(client: Client) -> str:
    return client.service_client.config.target_host


def _warn_of_unknown_sdk() -> None:
    if without := missing():
        way_out = "install an earlier release of temporalio, or a later one of refold"
        log.error("sdk_unknown", temporalio=temporalio.__version__, without="; ".join(without), do=way_out)


def _compare_with_history(config: WorkerConfig, *, identity: str) -> None:
    """Give the runner a reader of histories; first, log the modules that it imports anew for each task."""
    runner = config.get("workflow_runner")
    for module, mutable in runner.shared.items() if isinstance(runner, Sandbox) else ():
        if isinstance(mutable, str):
            log.info("module_imported_for_each_task", module=module, mutable=mutable)
    if isinstance(runner, Sandbox | Unsandboxed):
        reader = FromServer(config["client"], identity)
        config["workflow_runner"] = cast(WorkflowRunner, runner.reading(reader))


def _is_dynamic(cls: type) -> bool:
    definition = getattr(cls, DEFINITION, None)
    return definition is not None and getattr(definition, "name", "") is None


def _pin_tasks(config: WorkerConfig) -> None:
    """Pin tasks to the version that began their run, as refold's own workers do, where the deployment has no default.

    The SDK refuses a workflow that does not say, and a skill has no place to. A default holds for the program's
    workflows, too, so it is set only where each of them says; else the SDK refuses the program's, as without refold.
    """
    deployment = config.get("deployment_config")
    if deployment is None or not deployment.use_worker_versioning:
        return
    if deployment.default_versioning_behavior in _UNSAID and all(map(_says_behavior, config.get("workflows") or ())):
        config["deployment_config"] = replace(deployment, default_versioning_behavior=VersioningBehavior.PINNED)


def _says_behavior(cls: type) -> bool:
    definition = getattr(cls, DEFINITION, None)
    return (
        issubclass(cls, SkillWorkflow)
        or getattr(definition, "versioning_behavior", None) not in _UNSAID
        or getattr(definition, "dynamic_config_fn", None) is not None
    )
