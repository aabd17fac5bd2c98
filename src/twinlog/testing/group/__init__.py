"""Whole brokers and a name server on virtual time, under faults and changes of role."""
