"""What the SDK hands a workflow at once: taken in batches, and never ahead of the workflow task that brings it."""
