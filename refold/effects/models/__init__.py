"""Model calls: resolving a model's name, building the request, reading the answer, classifying failures."""
