"""What master and slave of a group do for each other besides the bytes of the log."""
