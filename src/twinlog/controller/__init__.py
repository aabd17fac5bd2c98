"""Who is the master of a group: records, elections, leases (RocketMQ 5's controller)."""
