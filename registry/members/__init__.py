"""Membership: which nodes live, how that is probed, and who is suspected, as in SWIM. Pure, time is an argument."""
