"""Orders of a topic: typed, checked, kept in a Delta table; totals and bad ones to topics.

The options come from the environment, see `run.sh`.
"""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

spark = SparkSession.active()
NAME_SERVER, WORK = os.environ["NAME_SERVER"], os.environ["WORK"]
SCHEMA = "id INT, amount DECIMAL(10,2), at TIMESTAMP"
RESULTS = {"nameServer": NAME_SERVER, "exactlyOnce": "true"}

dp.create_sink("orders_table", "twinlog_delta", {"path": f"{WORK}/orders"})
dp.create_sink("results", "twinlog", {**RESULTS, "topic": "order-results"})
dp.create_sink("refused", "twinlog", {**RESULTS, "topic": "orders-refused"})


@dp.temporary_view
def typed() -> DataFrame:
    """The topic's messages, with their JSON as columns."""
    rows = (
        spark.readStream.format("twinlog")
        .option("nameServer", NAME_SERVER)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    return rows.withColumn("value", F.from_json(F.col("body").cast("string"), SCHEMA)).withColumn(
        "is_good", F.coalesce(F.expr("value.id IS NOT NULL AND value.amount > 0"), F.lit(False))
    )


@dp.append_flow(target="orders_table")
def good_orders() -> DataFrame:
    """Rows that pass the checks."""
    good = spark.readStream.table("typed").where("is_good")
    return good.select("keys", "store_ts", "value.id", "value.amount", "value.at")


@dp.append_flow(target="results")
def order_results() -> DataFrame:
    """A message for each good order: its id and what it costs with tax."""
    good = spark.readStream.table("typed").where("is_good")
    total = F.round(F.col("value.amount") * 1.19, 2)
    return good.select(F.to_json(F.struct("value.id", total.alias("total"))).alias("body"), "keys")


@dp.append_flow(target="refused")
def refused_orders() -> DataFrame:
    """The others, as they came."""
    return spark.readStream.table("typed").where("NOT is_good").select("body", "keys")
