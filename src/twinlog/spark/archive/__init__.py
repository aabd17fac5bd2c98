"""The archive: Parquet files and the manifest that says which of them count."""
