"""The Spark source: offsets, the subscription behind a stream, and stored batches as Arrow columns."""
