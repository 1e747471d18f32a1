"""Definitions of schemas in other languages than the fields form."""
