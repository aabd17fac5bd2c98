"""Where Spark looks for the format "twinlog_delta": it imports all modules named `pyspark_...`."""

from twinlog.spark.write.delta import DeltaSink as DefaultSource

__all__ = ["DefaultSource"]
