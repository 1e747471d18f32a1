"""Statistics of topics: rates, sizes, lag and latency, per topic and window of time; as data, and as a page.

gathering   Spark → figures           figures    what there is to know
latency     records → figures         charts     figures → SVG
                                      report     figures → one HTML file that needs nothing else
"""

from oncemq.spark.stats.collect import gather
from oncemq.spark.stats.report import page

__all__ = ["gather", "page"]
