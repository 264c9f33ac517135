"""What does a request through modelvine cost? Measurements of the project about itself, beside bare aiohttp."""
