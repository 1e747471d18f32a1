"""Statistics of topics: rates, sizes, lag and latency per topic and time window, as data and as an HTML page.

selection     topics and times
collector     topics → statistics, with Spark      model      the statistics
latency       records → statistics, with Spark     charts     statistics → SVG
percentiles   columns of both                      report     statistics → one HTML file without dependencies
"""

from oncemq.spark.stats.collector import collect_stats
from oncemq.spark.stats.report import render_page
from oncemq.spark.stats.selection import StatsSelection

__all__ = ["StatsSelection", "collect_stats", "render_page"]
