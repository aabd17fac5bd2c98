"""Single sends of an administrator: a test message, a message once more."""

from __future__ import annotations

from twinlog.admin.messages import send_again
from twinlog.client.message import Message, ReceivedMessage, SendReceipt
from twinlog.client.producer.producer import Producer
from twinlog.client.settings import ClientSettings


async def send_one(
    name_server: str, settings: ClientSettings, group: str, message: Message
) -> SendReceipt:
    """Send a message as a member of a producer group that lives as long as this call."""
    async with Producer(group, name_server=name_server, **settings) as producer:
        return await producer.send(message)


async def send_copy(
    name_server: str, settings: ClientSettings, group: str, message: ReceivedMessage, target: str
) -> SendReceipt:
    """Send a stored message once more."""
    async with Producer(group, name_server=name_server, **settings) as producer:
        return await send_again(producer, message, target)
