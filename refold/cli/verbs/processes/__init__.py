"""The verbs that run until they are stopped: a worker, the gateway, the codec server, all of them for development."""
