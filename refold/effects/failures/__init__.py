"""Why an effect failed, and whether another attempt can help."""
