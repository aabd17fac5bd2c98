#!/usr/bin/env bash
# Orders of a topic into a Delta table and topics of results, by Spark's own pipelines (`spark-pipelines`). Each run
# does what has come since the last one:
#   pip install 'twinlog[spark,lakehouse]' 'pyspark[pipelines]'
#   NAME_SERVER=127.0.0.1:9876 WORK=/data/orders bash run.sh
set -euo pipefail
: "${NAME_SERVER:?host:port of a name server}" "${WORK:?a directory, which keeps the table and the checkpoints}"
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$WORK/project" "$WORK/spark"
WORK=$(cd "$WORK" && pwd)
export NAME_SERVER WORK PYSPARK_PYTHON=${PYSPARK_PYTHON:-python3}
# Spark wants the place of the checkpoints as a whole address, so the specification is written here.
cp -r "$here/transformations" "$WORK/project/"
cat > "$WORK/project/spark-pipeline.yml" <<END
name: orders
storage: file://$WORK/storage
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.pipelines.maxFlowRetryAttempts: "10"
END
# Spark waits ten seconds for each Python process of a flow. Its own archive of PySpark, which it puts before the
# installed one, has to be compiled by each of them; a home without it starts them in a third of the time.
installed=$("$PYSPARK_PYTHON" -c 'import pyspark; print(pyspark.__path__[0])')
ln -sfn "$installed/bin" "$WORK/spark/bin"
ln -sfn "$installed/jars" "$WORK/spark/jars"
SPARK_HOME=${SPARK_HOME:-$WORK/spark} exec "$installed/bin/spark-pipelines" run --spec "$WORK/project/spark-pipeline.yml" "$@"
