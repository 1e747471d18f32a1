"""Run the declarative pipeline of this folder: what is there now, exactly once; run it again for what came since.

    oncemq serve &
    oncemq topics create orders --retain 1d
    echo '{"item": "pizza", "price": 9.5}' | oncemq put orders
    python examples/spark/declarative/run.py ./lake
    oncemq tail dear-orders --from earliest

It only calls `spark-pipelines run`, in a folder with all that the tool wants there, and with a Java that it finds or
brings.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from oncemq.spark import java

SPEC = """\
name: orders
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""


def main(folder: str) -> int:
    place = Path(folder).absolute()
    place.mkdir(parents=True, exist_ok=True)
    shutil.copytree(Path(__file__).parent / "transformations", place / "transformations", dirs_exist_ok=True)
    spec = place / "spark-pipeline.yml"
    spec.write_text(SPEC.format(storage=(place / "storage").as_uri()))
    settings = {
        # The catalogue, or a second run would not know the tables of the first.
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run", "--spec", str(spec)]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    java.use()
    surroundings = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return subprocess.run(command, cwd=place, env=surroundings, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "./oncemq-declarative"))
