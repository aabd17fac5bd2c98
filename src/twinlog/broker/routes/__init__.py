"""Being known to the name servers."""
