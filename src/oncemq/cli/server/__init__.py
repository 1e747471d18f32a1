"""`oncemq serve` and `oncemq gateway`, and where their log lines go."""
