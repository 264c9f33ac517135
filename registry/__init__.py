"""Registry of who serves which model: signed records, their merge, their spread, and what is durable."""
