"""Configuration: its fields, where each value comes from, and the checks that look at several fields."""
