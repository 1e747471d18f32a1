"""The OpenAPI document and the page at /docs, generated from the declared endpoints."""
