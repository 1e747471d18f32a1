"""Folders in object stores (S3, Google Cloud Storage, Azure): no locks and no renames, but conditional puts."""
