"""The program that spark-submit runs: `spark-submit … submit.py FILE…` is `oncemq pipeline run FILE…`.

The master and the settings are those of spark-submit. This file is outside the package `oncemq`, because Python adds
the folder of a program to the module path, and folders of that package have names of the standard library.
"""

import sys

from oncemq.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["pipeline", "run"]
    main()
