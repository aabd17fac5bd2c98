"""What a read covers: offsets, times, filters, and how it is cut into tasks."""
