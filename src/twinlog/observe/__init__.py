"""What is seen from outside: health, metrics, the HTTP port of every server."""
