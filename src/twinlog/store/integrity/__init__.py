"""Data at rest: what is damaged is found, named, never served, and healed from a replica."""
