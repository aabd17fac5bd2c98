"""What the outside world is: disk, clock, tasks, watermarks, configuration."""
