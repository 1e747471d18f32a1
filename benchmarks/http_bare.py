"""The cost of HTTP without a broker: a Starlette route that reads the body and answers, on the same uvicorn."""

from __future__ import annotations

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_ANSWER = b'{"topic":"bench","topic_id":1,"offset":1,"count":1,"time_ms":1,"subscriptions":1}'


async def take(request: Request) -> Response:
    await request.body()
    return Response(_ANSWER, 201, media_type="application/json")


app = Starlette(routes=[Route("/v1/topics/{topic}/messages", take, methods=["POST"])])

if __name__ == "__main__":
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws="none",
    )
