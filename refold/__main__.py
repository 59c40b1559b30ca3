"""`python -m refold` is `refold`."""

from refold.cli.app import main

if __name__ == "__main__":
    main()
