"""`python -m refold` is `refold`."""

from refold.cli.__main__ import main

if __name__ == "__main__":
    main()
