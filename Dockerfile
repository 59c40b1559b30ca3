# The worker and the gateway of docker-compose.yml: refold and the application beside it.
FROM python:3.13.12-slim-trixie

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app

# As process 1 Python would ignore SIGTERM until the worker handles it; tini passes it on.
RUN apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["tini", "--"]

# The lock's versions, of the runtime dependencies alone.
COPY pyproject.toml requirements.lock LICENSE README.md /build/
COPY refold /build/refold
RUN pip install --constraint /build/requirements.lock '/build[a2a,encryption,mcp,otel,postgres,web]' && rm -r /build

COPY workflows ./workflows
COPY activities ./activities
COPY client ./client
COPY deploy ./deploy
COPY worker.py ./

# A named volume takes its owner from the folder it is first mounted on.
RUN useradd --create-home refold && install -d -o refold -g refold /var/lib/refold/values /var/lib/refold/receipts
USER refold

CMD ["python", "worker.py"]
