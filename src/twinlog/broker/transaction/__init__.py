"""Transactional messages: half messages, their end, and the check of undecided ones."""
