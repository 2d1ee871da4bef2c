"""The port of the server."""

import asyncio
import socket

import pytest

from specjax.errors import RequestError
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


@pytest.mark.parametrize("host", ["\udcff", "a\0b", "x" * 300, "..", "999.0.0.1", "::zz"])
def test_a_host_that_is_no_address_gets_one_line(host):
    with pytest.raises(RequestError, match="cannot be used .*; name another with --port, or another --host") as error:
        bind(host, 0)
    assert "\n" not in str(error.value)
