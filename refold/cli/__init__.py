"""The command line: `refold start`, `refold watch` and the rest; one module per group of verbs."""
