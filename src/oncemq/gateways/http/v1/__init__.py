"""The endpoints under /v1, one module per subject.

Each module of endpoints has a list `ENDPOINTS`; gateways/http/endpoints.py combines them. `consume`, `ownership`,
`rendering` and `put_body` are used by several of them.
"""
