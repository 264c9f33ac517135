"""gRPC: messages, channels to workers, and servers. Only this folder knows grpc, and importing it alone loads none of it."""
