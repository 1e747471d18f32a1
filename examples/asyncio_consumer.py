"""Consume in an event loop: several subscriptions and producers in one thread.

    python examples/asyncio_consumer.py oncemq://127.0.0.1:5554

One client puts messages to two topics, while two asyncio tasks count what arrives.
"""

import asyncio
import sys

import oncemq.aio


async def consume(client: oncemq.aio.Client, topic: str) -> int:
    count = 0
    subscription = await client.subscribe(topic, "counter", start="earliest")
    async for _ in subscription.messages(timeout_s=1):
        count += 1
    await subscription.close()
    return count


async def main(url: str) -> None:
    async with oncemq.aio.connect(url) as client:
        topics = ["orders", "returns"]
        for topic in topics:
            await client.subscribe(topic, "counter")
        consumers = [asyncio.create_task(consume(client, topic)) for topic in topics]
        await asyncio.gather(*(client.put(topics[number % 2], f"message {number}") for number in range(100)))
        print(await asyncio.gather(*consumers))


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "memory:"))
