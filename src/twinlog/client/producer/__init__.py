"""Sending: from a message to a receipt."""
