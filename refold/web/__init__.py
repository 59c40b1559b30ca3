"""Small web applications over an `Engine`, to be mounted in one's own: `pip install 'refold[web]'`."""
