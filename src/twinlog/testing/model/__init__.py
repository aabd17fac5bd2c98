"""A controlled group on a drawing board: the production cores, everything else abstract."""
