"""Text in, text out: generators, their compiled sessions, and results."""
