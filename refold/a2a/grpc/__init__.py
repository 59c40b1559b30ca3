"""The gRPC binding: the same methods, callers, limits and streams as over HTTP. Needs the extra `grpc`."""
