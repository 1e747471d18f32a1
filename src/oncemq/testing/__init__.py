"""Fixtures for tests, of OnceMQ itself and of its users: brokers, PostgreSQL servers and Spark sessions.

The pytest plug-in (plugin.py) offers them as fixtures. Benchmarks and demonstrations use them too. Nothing here is used
by a broker or a client, and nothing reaches into their private attributes.
"""
