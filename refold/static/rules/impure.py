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
            "arrow.now",
            "arrow.utcnow",
            "arrow.Arrow.now",
            "arrow.Arrow.utcnow",
            "pendulum.now",
            "pendulum.today",
            "pendulum.tomorrow",
            "pendulum.yesterday",
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
    "time": CLOCK,
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

# And so is calling anything of these, or of what they return.
PURE = {
    "os.fspath",
    *map("os.{}".format, ["altsep", "curdir", "extsep", "linesep", "name", "pardir", "pathsep", "sep"]),
    *map("os.path.{}".format, ["basename", "commonpath", "dirname", "isabs", "join", "normpath", "split", "splitext"]),
    "asyncio.CancelledError",
    "asyncio.TimeoutError",
    "httpx.Headers",
    "httpx.QueryParams",
    "httpx.URL",
    "httpx.codes",
    "time.strptime",
}

# A call of these on a path reads or writes files. The first are so peculiar to paths that any receiver counts.
PATH_METHODS = {"iterdir", "read_bytes", "read_text", "write_bytes", "write_text"}
KNOWN_PATH_METHODS = PATH_METHODS | {
    "absolute", "chmod", "exists", "expanduser", "glob", "home", "is_dir", "is_file", "lstat", "mkdir", "open",
    "rename", "replace", "resolve", "rglob", "rmdir", "stat", "symlink_to", "touch", "unlink",
}  # fmt: skip

# What of a path is text, whose methods read nothing.
PATH_TEXTS = {"anchor", "as_posix()", "as_uri()", "drive", "name", "parts", "root", "stem", "suffix", "suffixes"}

GENERATOR = "random.Random"
"""With a seed, it draws the same numbers each time that it is made."""


def impurity_of(
    name: str | None, method: str = "", *, called: bool, arguments: int = 0, shared: bool = False
) -> Impurity | None:
    """Why a name may not be used; None where it may.

    Args:
        name: Dotted, from an absolute module; None where that cannot be told.
        method: The last attribute, for what cannot be told otherwise.
        called: Whether it is called, not only named.
        arguments: How many arguments it is called with.
        shared: Whether it belongs to a value that a module holds.
    """
    if called and method in PATH_METHODS:
        return IO
    if name is None:
        return None
    parts = name.split(".")
    prefixes = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    if any(prefix.removesuffix("()") in PURE for prefix in prefixes):
        return None
    if name in NAMES:
        return NAMES[name]
    if not called or (name == GENERATOR and arguments):
        return None
    if name.startswith(f"{GENERATOR}()."):
        return RANDOM if shared else None  # one without a seed is found where it is made
    if name == "arrow.get" and not arguments:
        return CLOCK
    if parts[0] == "pathlib":
        on_disk = method in KNOWN_PATH_METHODS and not parts[1].startswith("Pure") and PATH_TEXTS.isdisjoint(parts)
        return IO if on_disk else None
    return next((MODULES[prefix] for prefix in prefixes[1:] if prefix in MODULES), None)
