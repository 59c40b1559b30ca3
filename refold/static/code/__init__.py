"""What code of an application says: its files and modules, its names and values, what runs as part of a skill."""
