"""Values of topics with a schema, in each encoding."""
