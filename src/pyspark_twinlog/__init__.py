"""Where Spark looks for the format "twinlog": it imports all modules named `pyspark_...`."""

from twinlog.spark.source import TwinlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
