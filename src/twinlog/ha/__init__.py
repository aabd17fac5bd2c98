"""Replication between master and slave: RocketMQ's HA protocol, and what follows from its acks."""
