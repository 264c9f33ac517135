"""Who serves which model? Signed records, their merge, their spread, and what is durable."""
