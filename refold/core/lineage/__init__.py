"""Tasks made from other tasks: recovery, forks, upgrades, and conversations continued in a new task."""
