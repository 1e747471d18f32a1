"""Faults under a real Spark: where they happen (faulty.py), a driver that can be killed (driver.py, driving.py), the
streams that run through them (streams.py), and a campaign of kills (campaign.py).

    python -m tests.spark.faults --kills 10 --seed 7
"""
