"""The page at /docs: how it is generated from the OpenAPI document, and the files that it loads."""
