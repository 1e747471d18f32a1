"""The page at /docs: how it is made of the OpenAPI document, and the files that it loads."""
