"""What does a node send while nothing happens? Real processes on hosts of their own, and the counters of their cables."""
