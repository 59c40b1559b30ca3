"""The application's skills, one a file."""
