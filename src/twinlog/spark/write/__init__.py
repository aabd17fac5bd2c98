"""Rows into topics."""
