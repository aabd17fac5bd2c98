"""The data pipeline on Apache Spark: topics and replicas as tables, archive, audit and other jobs.

    options, errors   what a user writes, and what is said when it cannot be done
    decode/           records and bodies to columns
    read/             files of a replica, or brokers over the network: the same rows
    plan/             offsets, times and filters; how a batch is cut into tasks
    write/            rows into topics
    archive/          Parquet, published by manifest
    source            thin classes of Spark's Python data source interface over all of these
    run/              sessions, Python functions as tasks
    jobs/             one module per command

`decode`, `read` and `plan` know nothing of Spark. Spark finds the format "twinlog" through the
package `pyspark_twinlog`.
"""
