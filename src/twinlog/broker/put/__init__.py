"""A send from its header to its answer: properties, durability, repeats, replies."""
