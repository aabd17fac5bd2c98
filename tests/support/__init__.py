"""What several test suites share. Imported as `support`: pytest puts tests/ on the path."""
