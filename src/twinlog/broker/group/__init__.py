"""A broker in a controlled group: who decides, what was decided, and what the broker does."""
