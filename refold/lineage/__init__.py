"""Tasks made from tasks, in so far as engines and workers need it and the fold does not."""
