"""What the code did on the day of the recording: journals and Temporal histories, which it must still make.

`journals/` holds tasks that were driven event by event, without a server; `histories/` holds what a Temporal server
kept of tasks that ran on it. `test_journals.py` and `test_histories.py` make all of it again with the code as it is,
and name the file, the line and the field of the first difference.

A recorded file changes only in a commit whose message says which line or field differs now, and why that is wanted.
A change that was meant to keep behaviour, such as moving modules, changes none.

To record a new journal, add a script to `scenarios.py` (its skill, if it needs one, to `skills.py`), and run

    python -m tests.records.record NAME

The same command writes a journal anew with the code as it is, from the events that its file holds or, with `--script`,
from its script. To record a new history, add a scenario to `on_server.py` (its skill to `served.py`), and run

    python -m tests.records.record --histories NAME

which starts a Temporal server of its own. A recorded history itself never changes: it is what servers out there hold,
and code that cannot replay it any more breaks the tasks of those who run them. What is seen of it may, as said above:

    python -m tests.records.record --replayed NAME

writes the lines beside it anew. Without any NAME these commands write all of their kind.
"""
