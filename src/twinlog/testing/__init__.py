"""Support for tests: the world, simulated. Nothing here is used by a running server."""
