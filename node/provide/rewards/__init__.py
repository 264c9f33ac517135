"""Reward functions: each file is one way to score a response. `scoring.FUNCTIONS` maps their names to them."""
