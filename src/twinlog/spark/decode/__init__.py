"""Records and bodies to columns. No Spark, no files."""
