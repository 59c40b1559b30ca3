"""What a reducer or a step may not use, by name, and what to write instead.

A skill is folded again on every replay, query and look back, in any process, so that the same events must give the
same answer each time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Impurity:
    """Why a name may not be used.

    Attributes:
        rule: One word.
        does: What using it does; follows the function's name in a sentence.
        instead: What to write.
    """

    rule: str
    does: str
    instead: str


CLOCK = Impurity("clock", "reads the clock", "use `ctx.now`, the event's own time (pass it to helpers)")
SLEEP = Impurity("clock", "waits", "write `await ctx.sleep(seconds)` in a step, `Cmd.sleep(id, seconds)` in a reducer")
RANDOM = Impurity(
    "random",
    "is different each time",
    "derive it from `ctx.task_id` or the event (`uuid.uuid5`, a hash of it), or let a tool draw it",
)
PROCESS = Impurity("random", "differs from process to process", "use a value from the state or the event")
IO = Impurity("io", "reaches outside the task", "do it in a tool, and ask for that with a command")
ENVIRONMENT = Impurity(
    "io",
    "reads what differs from worker to worker",
    "read settings once, at the top of the module, or pass them in with the first message",
)
OUTPUT = Impurity(
    "io",
    "is written again whenever the skill is folded again",
    "use `ctx.status(...)`, `.status(...)` or a message; the journal is the log",
)
CONCURRENCY = Impurity(
    "concurrency",
    "starts or waits for something of its own",
    "ask for several at once with `ctx.gather(...)` or several `.cmd(...)`",
)

# Whatever these name is impure, called or handed on (`default_factory=uuid4`).
NAMES: dict[str, Impurity] = {
    **dict.fromkeys(
        [
            "datetime.datetime.now",
            "datetime.datetime.today",
            "datetime.datetime.utcnow",
            "datetime.date.today",
            "time.monotonic",
            "time.monotonic_ns",
            "time.perf_counter",
            "time.time",
            "time.time_ns",
        ],
        CLOCK,
    ),
    "time.sleep": SLEEP,
    "asyncio.sleep": SLEEP,
    **dict.fromkeys(["uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7", "os.urandom", "random.random"], RANDOM),
    **dict.fromkeys(["builtins.hash", "builtins.id", "os.getpid"], PROCESS),
    **dict.fromkeys(["os.environ", "os.getenv", "sys.argv", "os.getcwd", "pathlib.Path.cwd"], ENVIRONMENT),
    **dict.fromkeys(["builtins.open", "builtins.input", "builtins.breakpoint", "sys.stdin", "io.open"], IO),
    **dict.fromkeys(["builtins.print", "sys.stdout", "sys.stderr"], OUTPUT),
}

# Calling anything in these modules is impure, but for PURE.
MODULES: dict[str, Impurity] = {
    **dict.fromkeys(["time", "arrow", "pendulum"], CLOCK),
    **dict.fromkeys(["random", "secrets", "numpy.random"], RANDOM),
    **dict.fromkeys(["logging", "structlog", "loguru", "warnings"], OUTPUT),
    **dict.fromkeys(
        ["asyncio", "anyio", "trio", "threading", "multiprocessing", "concurrent.futures", "signal"], CONCURRENCY
    ),
    **dict.fromkeys(
        [
            "aiohttp", "anthropic", "asyncpg", "boto3", "ftplib", "glob", "http.client", "httpx", "openai", "os",
            "psycopg", "psycopg2", "redis", "requests", "shutil", "smtplib", "socket", "sqlalchemy", "sqlite3", "ssl",
            "subprocess", "tempfile", "urllib.request", "urllib3",
        ],
        IO,
    ),
}  # fmt: skip

PURE = {
    "os.fspath",
    *map("os.path.{}".format, ["basename", "commonpath", "dirname", "isabs", "join", "normpath", "split", "splitext"]),
    "asyncio.CancelledError",
    "asyncio.TimeoutError",
    "httpx.Headers",
    "httpx.QueryParams",
    "httpx.URL",
    "time.strptime",
}

# A call of these on a path reads or writes files. The first are so peculiar to paths that any receiver counts.
PATH_METHODS = {"iterdir", "read_bytes", "read_text", "write_bytes", "write_text"}
KNOWN_PATH_METHODS = PATH_METHODS | {
    "absolute", "chmod", "exists", "expanduser", "glob", "home", "is_dir", "is_file", "lstat", "mkdir", "open",
    "rename", "replace", "resolve", "rglob", "rmdir", "stat", "symlink_to", "touch", "unlink",
}  # fmt: skip


def impurity_of(name: str | None, method: str = "", *, called: bool, arguments: int = 0) -> Impurity | None:
    """Why a name may not be used; None where it may.

    Args:
        name: Dotted, from an absolute module; None where that cannot be told.
        method: The last attribute, for what cannot be told otherwise.
        called: Whether it is called, not only named.
        arguments: How many arguments it is called with.
    """
    if called and method in PATH_METHODS:
        return IO
    if name is None or name in PURE:
        return None
    if name in NAMES:
        return NAMES[name]
    if not called or name.startswith("random.Random().") or (name == "random.Random" and arguments):
        return None  # a generator with a seed repeats itself; one without is found where it is made
    if name.startswith("pathlib."):
        return IO if method in KNOWN_PATH_METHODS else None
    parts = name.split(".")
    prefixes = (".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
    return next((MODULES[prefix] for prefix in prefixes if prefix in MODULES), None)
