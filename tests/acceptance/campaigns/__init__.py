"""The crash campaigns: `python -m tests.acceptance` runs them."""
