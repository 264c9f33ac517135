"""HTTP/1.1 client: connections, their pool, time limits, and what every dialect over HTTP has in common."""
