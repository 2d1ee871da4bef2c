"""The port of the server."""

import asyncio
import socket

from specjax.serve.server import bind


def test_small_pieces_of_text_are_sent_at_once():
    """Nagle's algorithm would hold them until the client has acknowledged the piece before."""
    found = []

    async def connect():
        option = socket.IPPROTO_TCP, socket.TCP_NODELAY
        note = lambda _, writer: found.append(writer.get_extra_info("socket").getsockopt(*option))
        async with await asyncio.start_server(note, sock=bind("127.0.0.1", 0)) as server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            while not found:
                await asyncio.sleep(0.01)
            writer.close()

    asyncio.run(connect())
    assert found[0]
