"""One module per family of request codes; `broker/server.py` has the table."""
