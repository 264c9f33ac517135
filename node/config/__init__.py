"""Configuration: its fields, the sources of their values, and checks over several fields."""
