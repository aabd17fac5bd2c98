"""The data pipeline on Apache Spark: topics and replicas as tables, archive, audit and other jobs.

Modules that decode (`vector`, `decode`, `storeview`, `plan`, `offsets`, `options`) know nothing of
Spark; `source` and `archive` are thin classes of Spark's Python data source interface over them;
`jobs` holds one module per command. Spark finds the format "twinlog" through the package
`pyspark_twinlog`.
"""
