"""Consuming: membership, rebalance, readers, offsets."""
