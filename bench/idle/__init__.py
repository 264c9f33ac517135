"""Traffic of idle nodes."""
