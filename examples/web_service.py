"""A web service that sends a message for each order it takes.

The caller learns what is known: 202 when the message is stored, 503 when certainly nothing was
stored (the caller may try again), 504 when nobody knows (trying again may make a second copy, so
consumers look at the order's key).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from twinlog.client import ClientError, Message, Producer, SendOutcome

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = os.environ.get("ORDERS_TOPIC", "example-orders")


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    # One producer for the whole process. Its retries end when the caller would have gone.
    producer = Producer("example-web", name_server=NAME_SERVER, send_timeout_ms=5000, retry_count=3)
    async with producer:
        app.state.producer = producer
        yield


async def take_order(request: Request) -> JSONResponse:
    try:
        order = json.loads(await request.body())
        key = str(order["order"])
    except (ValueError, KeyError, TypeError):
        return JSONResponse({"error": "send a JSON object with a member 'order'"}, 400)
    message = Message(TOPIC, json.dumps(order).encode(), tags="taken", keys=[key])
    try:
        receipt = await request.app.state.producer.send(message)
    except ClientError as error:
        is_unknown = error.outcome is SendOutcome.UNKNOWN
        answer = {"error": str(error), "stored": "unknown" if is_unknown else "no"}
        return JSONResponse(answer, 504 if is_unknown else 503)
    return JSONResponse({"id": receipt.message_id, "status": receipt.status.name}, 202)


async def health(request: Request) -> JSONResponse:
    """Whether an order could be taken now. A load balancer that hears no asks again later."""
    producer: Producer = request.app.state.producer
    try:
        await producer.queues(TOPIC)  # Asks the name server only if the topic is not known yet.
    except ClientError as error:
        return JSONResponse({"ok": False, "reason": str(error)}, 503)
    found = producer.health()
    return JSONResponse({"ok": found.is_ok, "reason": found.reason}, 200 if found.is_ok else 503)


app = Starlette(
    routes=[Route("/orders", take_order, methods=["POST"]), Route("/health", health)],
    lifespan=lifespan,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, log_level="warning")


if __name__ == "__main__":
    main()
