"""`oncemq pipeline`: one module per command. Spark is imported only when a command runs."""
