"""Programs that come with OnceMQ: fault demonstration, shell, benchmarks."""
