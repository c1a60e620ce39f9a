"""HTTP/2 and gRPC as they go over a socket; nothing here knows CRI."""
