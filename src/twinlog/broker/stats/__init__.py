"""Numbers that administration asks for."""
