"""Pulls and other requests that wait."""
