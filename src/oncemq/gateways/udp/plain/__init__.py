"""Plain packets of text, as a person could type them."""
