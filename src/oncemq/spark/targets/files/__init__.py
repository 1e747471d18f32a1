"""Parquet files as a streaming target: staged files, and a commit log that readers trust."""
