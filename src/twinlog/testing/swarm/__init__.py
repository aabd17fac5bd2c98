"""Controlled groups of whole brokers, controllers, name servers and clients on virtual time."""
