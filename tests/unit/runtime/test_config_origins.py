"""Where the value of a configuration key is from."""

from __future__ import annotations

from pathlib import Path

from twinlog.runtime.config import load_broker_config, update_config


def test_every_value_that_is_no_default_has_an_origin(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        "brokerName=a\nfileReservedTime=48\nmapedFileSizeCommitLog=1048576\nlistenPort=1\n"
    )
    variables = {"NAMESRV_ADDR": "127.0.0.1:1", "ROCKETMQ_HOME": str(tmp_path)}
    loaded = load_broker_config(str(path), {"listenPort": "10911"}, environment=variables)
    config = loaded.config
    assert config.origins == {
        "brokerName": "file",
        "fileReservedTime": "file",
        "mappedFileSizeCommitLog": "file",
        "listenPort": "command line",
        "namesrvAddr": "environment",
        "rocketmqHome": "environment",
    }
    update_config(config, {"fileReservedTime": "24", "brokerName": "a"})
    assert config.origins["fileReservedTime"] == "run time"
    assert config.origins["brokerName"] == "file"  # It was not changed.


def test_what_a_file_says_wins_over_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("namesrvAddr=127.0.0.1:2\n")
    loaded = load_broker_config(str(path), environment={"NAMESRV_ADDR": "127.0.0.1:1"})
    assert loaded.config.origins == {"namesrvAddr": "file"}
    assert load_broker_config(environment={}).config.origins == {}
