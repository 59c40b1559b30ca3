"""Tasks made from tasks: recovery and forks, which engines and workers run, and the fold does not."""
