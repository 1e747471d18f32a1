"""`oncemq serve`, except that the token of its own gateways is known: `python -m tests.auth.serve_with_known_token`."""

from __future__ import annotations

from oncemq.cli.main import main
from oncemq.server import serve

GATEWAY_TOKEN = "omq_gateway0_" + 43 * "G"

if __name__ == "__main__":
    serve.new_token = lambda: GATEWAY_TOKEN  # type: ignore[attr-defined]
    main()
