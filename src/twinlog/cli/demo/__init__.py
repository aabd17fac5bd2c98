"""`twinlog demo`: a pair under load, its master killed, and a verdict from what was counted."""
