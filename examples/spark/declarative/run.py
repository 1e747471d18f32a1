"""Run the declarative pipeline of this folder on the available orders, exactly once. Run it again for new orders.

    oncemq serve &
    oncemq topics create orders --retain 1d
    echo '{"item": "pizza", "price": 9.5}' | oncemq put orders
    python examples/spark/declarative/run.py ./lake
    oncemq tail dear-orders --from earliest

It calls `spark-pipelines run` in a folder with the files that the tool needs, and finds a Java runtime for it.
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
    project = Path(folder).absolute()
    project.mkdir(parents=True, exist_ok=True)
    shutil.copytree(Path(__file__).parent / "transformations", project / "transformations", dirs_exist_ok=True)
    spec = project / "spark-pipeline.yml"
    spec.write_text(SPEC.format(storage=(project / "storage").as_uri()))
    settings = {
        # Without a persistent catalog, a second run would not know the tables of the first one.
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(project / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run", "--spec", str(spec)]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    java.use()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return subprocess.run(command, cwd=project, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "./oncemq-declarative"))
