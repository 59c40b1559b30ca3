"""What the server's index knows of tasks: filters, lists, and pages of the newest ones."""
