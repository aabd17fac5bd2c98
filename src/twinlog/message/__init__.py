"""Messages and their byte form. Pure: no I/O, no clock."""
