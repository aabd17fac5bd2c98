"""Configuration: Apache's files and defaults, and every way to get one wrong."""

import os
from pathlib import Path

import msgspec
import pytest

from twinlog.runtime.addresses import choose_address, is_wildcard, resolve
from twinlog.runtime.config import (
    BrokerConfig,
    BrokerRole,
    ConfigError,
    FlushDiskType,
    HADialect,
    NamesrvConfig,
    Reseed,
    load_broker_config,
    load_controller_config,
    load_namesrv_config,
    update_config,
)
from twinlog.runtime.config_format import key_of

VECTORS = Path(__file__).parents[2] / "vectors"


def _load(tmp_path, text, overrides=None, environment=None):
    path = tmp_path / "broker.conf"
    path.write_text(text)
    return load_broker_config(str(path), overrides, environment=environment or {})


def _fails(tmp_path, text, *parts):
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, text)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("broker.conf", *parts):
        assert part in message
    return message


def _vector_properties():
    data = (VECTORS / "frames/026_GET_BROKER_CONFIG.mqadmin-master.1.response.bin").read_bytes()
    text = data[data.index(b"}shortPolling") + 1 :].decode()
    return dict(line.split("=", 1) for line in text.splitlines())


def test_defaults_are_those_that_apache_answers():
    theirs = _vector_properties()
    loaded = load_broker_config(str(VECTORS / "master.conf"), environment={"ROCKETMQ_HOME": "home"})
    assert loaded.warnings == []
    ours = dict(line.split("=", 1) for line in loaded.config.to_properties().splitlines())
    assert set(theirs) <= set(ours)
    differ = {key for key in theirs if theirs[key] != ours[key]}
    # Changed by the run itself (updateBrokerConfig), or replaced by the size of a Bloom filter.
    differ -= {"forceRegister", "bitMapLengthConsumeQueueExt"}
    by_cores = {key for key in differ if "Thread" in key}
    assert differ == by_cores
    if os.cpu_count() == 2:  # The machine that the vectors come from.
        assert not by_cores


def test_what_differs_from_apache_on_purpose():
    config = load_broker_config(environment={}).config
    assert config.bind_address == "127.0.0.1"
    assert config.broker_ip1 == config.broker_ip2 == "127.0.0.1"
    assert config.broker_role is BrokerRole.ASYNC_MASTER
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert (config.listen_port, config.vip_listen_port, config.ha_listen_port) == (
        10911,
        10909,
        10912,
    )
    assert config.twinlog_ha_dialect is HADialect.AUTO
    assert config.twinlog_reseed is Reseed.TAIL
    assert config.broker_name


def test_ha_port_is_the_files_or_follows_the_service_port(tmp_path):
    assert _load(tmp_path, "listenPort=20000\n").config.ha_listen_port == 20001
    both = _load(tmp_path, "listenPort=20000\nhaListenPort=30000\n").config
    assert both.ha_listen_port == 30000
    assert BrokerConfig(listen_port=0).ha_listen_port == 0
    _fails(tmp_path, "listenPort=20000\nhaListenPort=19998\n", "haListenPort=19998", "VIP")


def test_advertised_address_follows_the_bind_address(tmp_path):
    assert _load(tmp_path, "bindAddress=127.0.0.7\n").config.broker_ip1 == "127.0.0.7"
    everywhere = _load(tmp_path, "bindAddress=0.0.0.0\n").config
    assert not is_wildcard(everywhere.broker_ip1)
    given = _load(tmp_path, "bindAddress=0.0.0.0\nbrokerIP1=10.1.2.3\n").config
    assert given.broker_ip1 == "10.1.2.3"


def test_local_address_is_chosen_as_apache_does():
    assert choose_address(["127.0.0.1", "192.168.1.5", "10.0.0.3", "::1"]) == "10.0.0.3"
    assert choose_address(["127.0.0.1", "192.168.1.5", "::1"]) == "192.168.1.5"
    assert choose_address(["127.0.0.1", "fe80::1", "2001:db8::1"]) == "2001:db8::1"
    assert choose_address([]) == "127.0.0.1"


def test_both_spellings_of_mapped(tmp_path):
    for key in ("mapedFileSizeCommitLog", "mappedFileSizeCommitLog"):
        loaded = _load(tmp_path, f"{key}=65536\n")
        assert loaded.config.mapped_file_size_commit_log == 65536
        assert loaded.warnings == []
    for key in ("warmMapedFileEnable", "warmMappedFileEnable"):
        loaded = _load(tmp_path, f"{key}=true\n")
        assert [idle.key for idle in loaded.without_effect] == ["warmMapedFileEnable"]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("listenPort=abc", ("listenPort=abc", "a number")),
        ("listenPort=65536", ("listenPort=65536", "65535")),
        ("brokerRole=MASTER", ("brokerRole=MASTER", "ASYNC_MASTER, SYNC_MASTER or SLAVE")),
        ("flushDiskType=sync", ("flushDiskType=sync",)),
        ("slaveReadEnable=yes", ("slaveReadEnable=yes", "expected true or false")),
        ("mapedFileSizeCommitLog=1G", ("mapedFileSizeCommitLog=1G",)),
        ("fileReservedTime=-1", ("fileReservedTime=-1",)),
        ("fileReservedTime=1e3", ("fileReservedTime=1e3", "a number")),
        ("fileReservedTime=5.0", ("fileReservedTime=5.0", "a number")),
        ("fileReservedTime=1_000", ("fileReservedTime=1_000", "a number")),
        ("deleteWhen=25", ("deleteWhen=25", "hour")),
        ("messageDelayLevel=1s 5x", ("messageDelayLevel=1s 5x", "'5x'")),
        ("twinlogHADialect=modern", ("twinlogHADialect=modern",)),
        ("enableDLegerCommitLog=true", ("enableDLegerCommitLog=true", "does not have")),
        ("enableLmq=true", ("enableLmq=true",)),
        ("messageStorePlugIn=com.example.Plug", ("messageStorePlugIn=com.example.Plug",)),
        ("listenPort=1", ("listenPort=1", "VIP")),
    ],
)
def test_wrong_value_is_named_with_file_key_and_value(tmp_path, line, parts):
    _fails(tmp_path, f"brokerName=a\n{line}\n", *parts)


@pytest.mark.parametrize(
    "line",
    [
        "brokerRole=SLAVE # the second one",
        "storePathRootDir=/data/store #fast disk",
        "listenPort=10911 # service",
        "aclEnable=true # for now",
    ],
)
def test_comment_behind_a_value_is_an_error_that_names_it(tmp_path, line):
    message = _fails(tmp_path, f"{line}\n", "is not a comment here", line.partition("#")[2])
    assert line.partition("=")[0] in message
    assert "broker.conf:1" in message


def test_number_sign_inside_a_word_is_no_comment(tmp_path):
    assert _load(tmp_path, "brokerName=a#b\n").config.broker_name == "a#b"


def test_unknown_key_is_warned_about_with_the_nearest_name(tmp_path):
    loaded = _load(tmp_path, "\n# a comment\nbrokerClusterNmae=c\nqqqqqqqq=1\n")
    assert len(loaded.warnings) == 2
    assert "broker.conf:3" in loaded.warnings[0]
    assert "did you mean brokerClusterName?" in loaded.warnings[0]
    assert "qqqqqqqq: unknown key" in loaded.warnings[1]
    assert "did you mean" not in loaded.warnings[1]


def test_keys_of_a_jvm_are_accepted_and_listed(tmp_path):
    loaded = _load(
        tmp_path,
        "sendMessageThreadPoolNums=16\nuseReentrantLockWhenPutMessage=true\nbrokerName=b\n"
        "transientStorePoolEnable=true\nserverWorkerThreads=4\n",
    )
    assert loaded.warnings == []
    assert sorted(idle.key for idle in loaded.without_effect) == [
        "sendMessageThreadPoolNums",
        "serverWorkerThreads",
        "transientStorePoolEnable",
        "useReentrantLockWhenPutMessage",
    ]


def test_role_and_id_as_apache_checks_them(tmp_path):
    _fails(tmp_path, "brokerRole=SLAVE\n", "Slave's brokerId must be > 0")
    _fails(tmp_path, "brokerRole=SLAVE\nbrokerId=-1\n", "brokerId=-1")
    slave = _load(tmp_path, "brokerRole=SLAVE\nbrokerId=3\n").config
    assert not slave.is_master
    loaded = _load(tmp_path, "brokerRole=SYNC_MASTER\nbrokerId=3\n")
    assert loaded.config.broker_id == 0
    assert "brokerId: 3" in loaded.warnings[0]


@pytest.mark.parametrize(
    "line", ["enableControllerMode=true", "allAckInSyncStateSet=true", "minInSyncReplicas=2"]
)
def test_keys_of_controlled_groups_are_refused_where_they_would_be_ignored(tmp_path, line):
    """Ignored, two brokers with one file of 5.x would be two masters."""
    _fails(tmp_path, f"brokerRole=SYNC_MASTER\n{line}\n", line, "twinlog")
    harmless = "enableControllerMode=false\nallAckInSyncStateSet=false\nminInSyncReplicas=1\n"
    assert _load(tmp_path, harmless).warnings == []


def test_a_controlled_broker_answers_as_sync_master_unless_told_otherwise(tmp_path):
    group = "enableControllerMode=true\ncontrollerAddr=a:9878;b:9878\n"
    loaded = _load(tmp_path, group + "brokerId=-1\n")
    assert loaded.config.broker_role == "SYNC_MASTER"
    assert loaded.config.controller_addresses == ["a:9878", "b:9878"]
    assert _load(tmp_path, group + "brokerRole=ASYNC_MASTER\n").config.broker_role == "ASYNC_MASTER"
    slave = _load(tmp_path, group + "brokerRole=SLAVE\nbrokerId=2\n")
    assert slave.config.broker_role == "SYNC_MASTER"
    assert "not a policy" in slave.warnings[0]


def test_fewer_acknowledgements_than_the_whole_set_are_refused(tmp_path):
    """k of n acknowledgements and "any member may be elected" together lose messages."""
    group = "enableControllerMode=true\ncontrollerAddr=a:9878\n"
    _fails(tmp_path, group + "allAckInSyncStateSet=false\n", "allAckInSyncStateSet=false")
    assert _load(tmp_path, group + "allAckInSyncStateSet=true\nminInSyncReplicas=2\n").config


@pytest.mark.parametrize("address", ["there", "a:many", "host:"])
def test_addresses_of_controllers_are_checked(tmp_path, address):
    text = f"enableControllerMode=true\ncontrollerAddr={address}\n"
    _fails(tmp_path, text, f"controllerAddr={address}")


def test_a_running_broker_cannot_be_told_to_use_a_controller():
    with pytest.raises(ConfigError, match="enableControllerMode=true"):
        update_config(BrokerConfig(), {"enableControllerMode": "true"})


def _load_namesrv(tmp_path, text):
    path = tmp_path / "namesrv.conf"
    path.write_text(text)
    return load_namesrv_config(str(path), environment={}).config


@pytest.mark.parametrize(
    ("lines", "port"),
    [
        ("", 9878),
        ("controllerDLegerPeers=n0-127.0.0.1:9999\n", 9999),
        ("twinlogControllerPort=7000\n", 7000),
        ("controllerDLegerPeers=n0-127.0.0.1:9999\ntwinlogControllerPort=7000\n", 7000),
        ("controllerDLegerPeers=n7-10.0.0.1:9999\ncontrollerDLegerSelfId=n7\n", 9999),
    ],
)
def test_where_the_controller_inside_a_name_server_listens(tmp_path, lines, port):
    config = _load_namesrv(tmp_path, f"enableControllerInNamesrv=true\n{lines}")
    assert config.controller.service_port == port


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("controllerDLegerPeers=n0-127.0.0.1", "is not id-host:port"),
        ("controllerDLegerPeers=127.0.0.1:9878", "is not id-host:port"),
        ("controllerDLegerPeers=n1-127.0.0.1:9878", "n0 is none of controllerDLegerPeers"),
        ("controllerDLegerPeers=n0-a:1;n0-b:2", "two controllers have the same id"),
        ("controllerDLegerPeers=n0-a:1;n1-b:2", "set twinlogControllerEtcd"),
        ("twinlogControllerPort=9876", "is also the name server's"),
        ("enableElectUncleanMaster=true", "an operator requests it"),
        ("twinlogLeaseMs=20", "from 500 to 60000"),
    ],
)
def test_a_controller_inside_a_name_server_is_refused_for_a_reason(tmp_path, lines, reason):
    with pytest.raises(ConfigError, match=reason):
        _load_namesrv(tmp_path, f"enableControllerInNamesrv=true\n{lines}\n")


def test_a_name_server_without_a_controller_connects_to_nobody(tmp_path):
    with pytest.raises(ConfigError, match=r"namesrv\.conf:1: useTLS=true"):
        _load_namesrv(tmp_path, "useTLS=true\n")
    config = _load_namesrv(tmp_path, "useTLS=true\nenableControllerInNamesrv=true\n")
    assert config.controller.use_tls


def test_addresses_of_name_servers_have_ports(tmp_path):
    _fails(tmp_path, "namesrvAddr=there\n", "namesrvAddr=there")
    _fails(tmp_path, "namesrvAddr=1.1.1.1:9876;2.2.2.2:x\n", "'2.2.2.2:x' is not host:port")
    _fails(tmp_path, "namesrvAddr=:9876\n", "is not host:port")
    good = "a.example:9876;[::1]:9876;10.0.0.1:1;"
    assert len(_load(tmp_path, f"namesrvAddr={good}\n").config.namesrv_addresses) == 3


def test_a_host_is_given_by_address_or_by_name():
    assert resolve("10.1.2.3") == "10.1.2.3"
    assert resolve("fe80::1%eth0") == "fe80::1%eth0"
    assert resolve("localhost") == "127.0.0.1"
    with pytest.raises(ValueError, match="neither an address nor a name"):
        resolve("no machine")


@pytest.mark.parametrize(
    "key", ["brokerIP1", "brokerIP2", "bindAddress", "metricsPromExporterHost"]
)
def test_an_address_of_this_machine_is_an_address_or_a_host_name(tmp_path, key):
    for text in ("no machine", "10.0.0.256", "1.2.3", "10.0.0.1:10911", "a..b", "-a", "x" * 64):
        _fails(tmp_path, f"{key}={text}\n", f"{key}={text}: is neither an address nor a host name")
    for text in ("10.0.0.1", "::1", "fe80::1%eth0", "broker-a-0", "a.example", "a.example.", "b_1"):
        _load(tmp_path, f"{key}={text}\n")


def test_a_server_may_listen_on_every_address(tmp_path):
    for text in ("0.0.0.0", "::", "*"):
        _load(tmp_path, f"bindAddress={text}\n")


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/full"])
@pytest.mark.parametrize("read", [load_broker_config, load_namesrv_config, load_controller_config])
def test_a_file_without_an_end_is_refused(name, read):
    with pytest.raises(ConfigError, match=f"{name}: cannot be read: it has more than 1 MiB"):
        read(name, environment={})
    with pytest.raises(ConfigError, match=f"cannot read {name}: it has more than 1 MiB"):
        read(None, {"tls.config.file": name}, environment={})


def test_file_command_line_and_environment(tmp_path):
    text = "namesrvAddr=1.1.1.1:9876;2.2.2.2:9876\nlistenPort=20000 \n"
    loaded = _load(tmp_path, text, {"listenPort": "30000"}, {"NAMESRV_ADDR": "3.3.3.3:1"})
    assert loaded.config.listen_port == 30000
    assert loaded.config.namesrv_addresses == ["1.1.1.1:9876", "2.2.2.2:9876"]
    assert loaded.given == {"namesrv_addr", "listen_port"}
    from_environment = _load(tmp_path, "", environment={"NAMESRV_ADDR": "3.3.3.3:1"}).config
    assert from_environment.namesrv_addresses == ["3.3.3.3:1"]
    with pytest.raises(ConfigError, match="command line: listenPort=x"):
        _load(tmp_path, "", {"listenPort": "x"})


def test_duplicate_and_empty_keys(tmp_path):
    loaded = _load(tmp_path, "listenPort=1000\nfileReservedTime=\nlistenPort=2000\n")
    assert loaded.config.listen_port == 2000
    assert loaded.config.file_reserved_time == 72
    assert any("line 1 has no effect" in warning for warning in loaded.warnings)
    assert any("fileReservedTime: empty" in warning for warning in loaded.warnings)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.conf: cannot be read: No such file"):
        load_broker_config(str(tmp_path / "nowhere.conf"))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_broker_config(str(tmp_path))
    (tmp_path / "b.conf").write_bytes(b"brokerName=\\u12\n")
    with pytest.raises(ConfigError, match="not a properties file"):
        load_broker_config(str(tmp_path / "b.conf"))


def test_text_in_either_encoding(tmp_path):
    for data in ("brokerName=größe".encode(), "brokerName=größe".encode("latin-1")):
        path = tmp_path / "b.conf"
        path.write_bytes(data)
        assert load_broker_config(str(path), environment={}).config.broker_name == "größe"


def test_values_that_follow_from_others():
    config = BrokerConfig(store_path_root_dir="/s", mapped_file_size_consume_queue=6001)
    assert config.commit_log_paths == ["/s/commitlog"]
    assert config.consume_queue_file_size == 6020
    assert config.delay_levels[1] == 1000
    assert config.delay_levels[18] == 7_200_000
    assert config.delete_when_hours == (4,)
    assert BrokerConfig(delete_when="04;16").delete_when_hours == (4, 16)
    assert BrokerConfig(disk_max_used_space_ratio=99).disk_max_used_ratio == 0.95
    assert BrokerConfig(store_path_commit_log="/a, /b").commit_log_paths == ["/a", "/b"]


def test_acl_and_tls_are_never_ignored(tmp_path):
    assert _load(tmp_path, "aclEnable=true\n").config.acl_enable is True
    assert _load(tmp_path, "useTLS=true\n").config.use_tls is True
    _fails(tmp_path, "tls.server.mode=enforcing\n", "tls.server.mode=enforcing", "certPath")
    _fails(tmp_path, "tls.server.modus=enforcing\n", "tls.server.modus", "unknown TLS key")


def test_update_while_running():
    config = BrokerConfig(listen_port=20000)
    assert update_config(config, {"fileReservedTime": "5", "listenPort": "20000"}) == [
        "file_reserved_time"
    ]
    assert config.file_reserved_time == 5
    with pytest.raises(ConfigError, match="update: nosuch=1: unknown key"):
        update_config(config, {"fileReservedTime": "6", "nosuch": "1"})
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        update_config(config, {"fileReservedTime": "6", "messageDelayLevel": "1"})
    assert config.file_reserved_time == 5


def test_name_server(tmp_path):
    path = tmp_path / "n.conf"
    path.write_text("listenPort=9877\norderMessageEnable=true\nserverWorkerThreads=9\n")
    loaded = load_namesrv_config(str(path), environment={})
    assert loaded.config.listen_port == 9877
    assert [idle.key for idle in loaded.without_effect] == ["serverWorkerThreads"]
    assert "orderMessageEnable=true\n" in loaded.config.to_properties()
    path.write_text("clusterTest=maybe\n")
    with pytest.raises(ConfigError, match="clusterTest=maybe"):
        load_namesrv_config(str(path))


def test_keys_of_attributes():
    for name, key in {
        "broker_ip1": "brokerIP1",
        "twinlog_ha_dialect": "twinlogHADialect",
        "ha_listen_port": "haListenPort",
        "check_crc_on_recover": "checkCRCOnRecover",
        "enable_d_leger_commit_log": "enableDLegerCommitLog",
        "use_tls": "useTLS",
    }.items():
        assert key_of(name) == key
    for struct in (BrokerConfig, NamesrvConfig):
        keys = [key_of(name) for name in struct.__struct_fields__]
        assert len(set(keys)) == len(keys)


def test_what_is_printed_can_be_read_again(tmp_path):
    config = BrokerConfig(listen_port=20000, broker_name="b", in_sync_replicas=3)
    loaded = _load(tmp_path, config.to_properties())
    assert loaded.warnings == []
    assert msgspec.structs.replace(loaded.config, origins={}) == config
