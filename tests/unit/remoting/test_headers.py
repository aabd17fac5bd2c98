"""Typed headers: every captured command fits its class; Java's rules for absent and odd values."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from twinlog.remoting import codec
from twinlog.remoting.command import RemotingCommand, Request, header_to_ext
from twinlog.remoting.errors import HeaderError
from twinlog.remoting.headers import admin, clients, namesrv, offsets, pull, send
from twinlog.remoting.headers.base import Header

FRAMES = Path(__file__).parents[2] / "vectors" / "frames"
REQUESTS: dict[int, type[msgspec.Struct]] = {
    10: send.SendMessageRequestHeader,
    11: pull.PullMessageRequestHeader,
    12: pull.QueryMessageRequestHeader,
    14: offsets.QueryConsumerOffsetRequestHeader,
    15: offsets.UpdateConsumerOffsetRequestHeader,
    17: admin.CreateTopicRequestHeader,
    29: offsets.SearchOffsetRequestHeader,
    30: offsets.GetMaxOffsetRequestHeader,
    31: offsets.GetMinOffsetRequestHeader,
    32: offsets.GetEarliestMsgStoretimeRequestHeader,
    33: pull.ViewMessageRequestHeader,
    35: clients.UnregisterClientRequestHeader,
    36: send.ConsumerSendMsgBackRequestHeader,
    37: send.EndTransactionRequestHeader,
    38: clients.GetConsumerListByGroupRequestHeader,
    39: clients.CheckTransactionStateRequestHeader,
    40: clients.NotifyConsumerIdsChangedRequestHeader,
    50: admin.CreateAccessConfigRequestHeader,
    51: admin.DeleteAccessConfigRequestHeader,
    53: admin.UpdateGlobalWhiteAddrsConfigRequestHeader,
    100: namesrv.PutKVConfigRequestHeader,
    101: namesrv.GetKVConfigRequestHeader,
    102: namesrv.DeleteKVConfigRequestHeader,
    103: namesrv.RegisterBrokerRequestHeader,
    104: namesrv.UnregisterBrokerRequestHeader,
    105: namesrv.GetRouteInfoRequestHeader,
    202: admin.GetTopicStatsInfoRequestHeader,
    203: clients.GetConsumerConnectionListRequestHeader,
    204: clients.GetProducerConnectionListRequestHeader,
    205: namesrv.WipeWritePermOfBrokerRequestHeader,
    207: admin.DeleteSubscriptionGroupRequestHeader,
    208: admin.GetConsumeStatsRequestHeader,
    215: admin.DeleteTopicRequestHeader,
    216: namesrv.DeleteTopicInNamesrvRequestHeader,
    219: namesrv.GetKVListByNamespaceRequestHeader,
    220: offsets.ResetOffsetRequestHeader,
    221: offsets.GetConsumerStatusRequestHeader,
    222: offsets.ResetOffsetRequestHeader,
    223: offsets.GetConsumerStatusRequestHeader,
    224: namesrv.GetTopicsByClusterRequestHeader,
    300: admin.QueryTopicConsumeByWhoRequestHeader,
    303: admin.QueryConsumeTimeSpanRequestHeader,
    307: clients.GetConsumerRunningInfoRequestHeader,
    308: offsets.QueryCorrectionOffsetHeader,
    309: clients.ConsumeMessageDirectlyResultRequestHeader,
    310: send.SendMessageRequestHeaderV2,
    314: offsets.CloneGroupOffsetRequestHeader,
    315: admin.ViewBrokerStatsDataRequestHeader,
    317: admin.GetConsumeStatsInBrokerHeader,
    320: send.SendMessageRequestHeaderV2,
    321: pull.QueryConsumeQueueRequestHeader,
    322: namesrv.QueryDataVersionRequestHeader,
    323: admin.ResumeCheckHalfMessageRequestHeader,
    324: send.SendMessageRequestHeader,
    325: send.SendMessageRequestHeaderV2,
    326: send.ReplyMessageRequestHeader,
    327: namesrv.AddWritePermOfBrokerRequestHeader,
}
# Ext fields that are understood elsewhere or by nobody.
COMMON = {"ReqT", "bname", "AccessKey", "Signature", "SecurityToken"}
# A pull sent to the VIP port to be refused there, without the fields a pull needs.
INCOMPLETE = {"011_PULL_MESSAGE.client-master.1.request.bin"}
FILES = [path for path in sorted(FRAMES.glob("*.request.bin")) if path.name not in INCOMPLETE]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_captured_request_fits_its_header_class(path: Path) -> None:
    command = codec.decode_command(path.read_bytes())
    ext = dict(codec.decode_command(path.read_bytes()).ext())
    header_class = REQUESTS.get(command.code)
    if header_class is None:
        assert set(ext) <= COMMON, f"request {command.code} has ext fields and no header class"
        return
    header = command.header(header_class)
    again = header_to_ext(header)
    for name, value in ext.items():
        if name not in COMMON and value != "":
            assert again[name] == value, name


class Sample(Header):
    number: int
    text: str = "default"
    is_good: bool = False
    maybe: int | None = None


def sample(ext: bytes) -> Sample:
    header = b'{"code":1,"extFields":%b}' % ext
    return codec.decode_header(0, header).header(Sample)


def test_numbers_and_booleans_may_come_unquoted_as_the_cpp_client_sends_them() -> None:
    assert sample(b'{"number":3,"isGood":true,"text":"x"}') == Sample(3, "x", True)
    assert sample(b'{"number":"3","isGood":"TRUE","text":5}') == Sample(3, "5", True)


def test_null_is_absent_and_what_is_not_true_is_false() -> None:
    assert sample(b'{"number":"3","text":null,"isGood":"yes","maybe":""}') == Sample(3)


def test_unknown_fields_are_ignored() -> None:
    assert sample(b'{"number":"1","ns":"x","nsd":"true","deep":[[[]]]}') == Sample(1)


@pytest.mark.parametrize(
    ("ext", "said"),
    [
        (b'{"text":"x"}', "the field number of the request header is missing"),
        (b"{}", "the field number of the request header is missing"),
        (b"null", "the field number of the request header is missing"),
        (b'{"number":""}', "the field number of the request header is missing"),
        (b'{"number":"seven"}', "the field number of the request header is not readable: 'seven'"),
        (b'{"number":"1","maybe":"x"}', "the field maybe of the request header is not readable"),
    ],
)
def test_missing_or_unreadable_field_is_named(ext: bytes, said: str) -> None:
    with pytest.raises(HeaderError, match=said):
        sample(ext)


def test_request_without_ext_fields_names_the_first_missing_field() -> None:
    with pytest.raises(HeaderError, match="the field number"):
        Request(1).header(Sample)


def test_number_beyond_javas_range_is_not_readable() -> None:
    ext = {"topic": "T", "queueId": str(2**31)}
    with pytest.raises(HeaderError, match="queueId"):
        RemotingCommand(30, ext_fields=ext).header(offsets.GetMaxOffsetRequestHeader)
    ext["queueId"] = str(2**31 - 1)
    header = RemotingCommand(30, ext_fields=ext).header(offsets.GetMaxOffsetRequestHeader)
    assert header.queue_id == 2**31 - 1


def test_none_is_not_sent_and_booleans_are_lower_case() -> None:
    assert header_to_ext(Sample(5)) == {"number": "5", "text": "default", "isGood": "false"}
