"""Delayed messages: their levels and their delivery."""
