"""Lane: the fast path of plain model calls, which bypass aiohttp and need no task where a worker answers at once."""
