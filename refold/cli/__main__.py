"""`refold`, and `python -m refold.cli`: Ctrl-C ends it without a traceback, also while it loads."""

import os


def main() -> None:
    """Load the command line, which takes a second or so, and run it."""
    try:
        from refold.cli import app  # here, where Ctrl-C is awaited
    except KeyboardInterrupt:
        os._exit(130)  # `errors.INTERRUPTED`, which may not have been loaded
    app.main()


if __name__ == "__main__":
    main()
