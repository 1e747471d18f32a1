"""Benchmarks that need a broker in a certain state, a gateway, Spark, PostgreSQL or other brokers."""
