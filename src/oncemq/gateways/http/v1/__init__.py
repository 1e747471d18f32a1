"""The endpoints under /v1, one module per subject.

Each module has a list `ENDPOINTS`. gateways/http/endpoints.py combines them.
"""
