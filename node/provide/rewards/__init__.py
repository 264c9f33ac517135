"""Reward functions: each file is one way to score a response. `scoring.FUNCTIONS` has all by their names."""
