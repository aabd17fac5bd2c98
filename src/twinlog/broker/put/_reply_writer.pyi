"""The compiled form of `PutReplies`' own writing of plain answers."""

from twinlog.broker.put.replies import SendReply

class ReplyWriter:
    def __init__(self, pieces: tuple[bytes, ...]) -> None: ...
    def write(self, plain: list[SendReply]) -> None: ...
