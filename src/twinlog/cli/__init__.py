"""The command line: `twinlog`, and the names that Apache users type."""
