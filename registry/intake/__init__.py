"""Intake: which data from strangers and neighbours is accepted, and at what rate. Pure, time is an argument."""
