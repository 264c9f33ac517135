"""Intake: what is believed of strangers and neighbours, how fast, and for how long not. Pure, time is an argument."""
