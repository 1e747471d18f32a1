"""GET /metrics in the text format of Prometheus."""
