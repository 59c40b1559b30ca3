"""Small web applications over an `Engine`, to mount in one's own: `pip install 'refold[web]'`."""
