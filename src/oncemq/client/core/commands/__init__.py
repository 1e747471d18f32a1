"""The commands of a session from their submission to their replies, and the requests that carry them."""
