"""`python -m refold.cli` is `refold`."""

from refold.cli.app import main

if __name__ == "__main__":
    main()
