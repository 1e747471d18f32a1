"""The HTTP queue: endpoints for producers and consumers that register, one module per subject."""
