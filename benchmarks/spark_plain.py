"""A plain Spark program, without OnceMQ: new text files of a folder become Parquet.

python -m benchmarks.spark_plain FOLDER
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main() -> None:
    folder = sys.argv[1]
    spark = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    lines = spark.readStream.format("text").load(f"{folder}/in")
    writer = lines.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start(f"{folder}/out").awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
