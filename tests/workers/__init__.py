"""Workers to test against: real HTTP servers that answer as models do, and fail on request."""
