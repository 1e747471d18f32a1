"""What runs a client: flows, drivers for threads and for asyncio, background tasks, transports."""
