"""Workers that do not stay: one that ends when its queue is empty, and one for a function that the cloud calls."""
