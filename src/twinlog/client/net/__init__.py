"""Name servers, routes and requests to brokers."""
