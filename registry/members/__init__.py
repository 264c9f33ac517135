"""Membership: which nodes live; probing and suspicion, as in SWIM. Pure, time is an argument."""
