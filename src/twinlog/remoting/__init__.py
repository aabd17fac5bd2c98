"""RocketMQ's RPC: frames, headers and commands (pure), server and client (shells)."""
