"""The web console: pages and an HTTP API over the functions of `twinlog.admin`."""
