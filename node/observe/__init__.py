"""Observability: logs, metrics, counters of all processes, and facts about the machine."""
