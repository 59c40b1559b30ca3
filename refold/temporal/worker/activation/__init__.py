"""The SDK's activations of a task: taken in batches, and never ahead of the workflow task that delivers them."""
