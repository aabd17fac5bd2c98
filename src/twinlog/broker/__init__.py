"""The broker: processors that join store, remoting and replication."""
