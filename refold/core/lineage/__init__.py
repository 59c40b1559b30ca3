"""Tasks that are made from other tasks: recovery, forks, upgrades, conversations that go on."""
