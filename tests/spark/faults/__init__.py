"""Faults in a real Spark: the points of failure (faulty.py), drivers that can be killed (driver.py,
driver_processes.py), the streams that run through them (streams.py), and a campaign of kills (campaign.py).

    python -m tests.spark.faults --kills 10 --seed 7
"""
