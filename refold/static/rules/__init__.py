"""The rules of `refold check`, by what they are about."""
