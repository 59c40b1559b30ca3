"""Model calls: resolving a model's name, building the request, reading the answer, classifying failures."""

MODEL_SETTING = "REFOLD_MODEL"
"""The setting that names the model of calls that name none."""
