"""The Spark sink: rows as payloads, staged by tasks and committed by the driver, once per batch."""
