"""The hash index: messages by key."""
