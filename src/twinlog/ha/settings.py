"""What replication reads of a broker's configuration."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, replace

from twinlog.ha.receiver import ReceiverSettings
from twinlog.ha.sender import SenderSettings
from twinlog.observe.health import SyncLimits, sync_limits
from twinlog.runtime.broker_config import BrokerConfig
from twinlog.runtime.tls import ha_tls

GROUP_HEARTBEAT_MS = 400  # On the links of a controlled group: a silent master is noticed soon.


@dataclass(frozen=True, slots=True, kw_only=True)
class HASettings:
    """Times in milliseconds, sizes in bytes."""

    role: str = "ASYNC_MASTER"
    bind_address: str = "127.0.0.1"
    listen_port: int = 0
    master_address: str | None = None
    send_heartbeat_interval_ms: int = 5000
    housekeeping_interval_ms: int = 20_000
    transfer_batch_size: int = 32_768
    slave_fall_behind_max: int = 268_435_456
    slave_not_catchup_ms: int = 15_000
    slave_timeout_ms: int = 3000
    in_sync_replicas: int = 2
    transfer_bytes_per_second_max: int = 0
    tls: ssl.SSLContext | None = None
    """Of a master for those who dial it, of a slave for dialling; the twin dialect's only."""
    dial_tls: ssl.SSLContext | None = None
    """In a controlled group, where each broker may become either: for dialling."""

    def changed(self, config: BrokerConfig) -> HASettings:
        """The same with what may be changed while running."""
        limit = config.max_ha_transfer_byte_in_second if config.ha_flow_control_enable else 0
        heartbeat_ms = config.ha_send_heartbeat_interval
        is_controlled = config.enable_controller_mode
        return replace(
            self,
            role=self.role if is_controlled else config.broker_role.value,
            send_heartbeat_interval_ms=min(heartbeat_ms, GROUP_HEARTBEAT_MS)
            if is_controlled
            else heartbeat_ms,
            housekeeping_interval_ms=config.ha_housekeeping_interval,
            transfer_batch_size=config.ha_transfer_batch_size,
            slave_fall_behind_max=config.ha_slave_fallbehind_max,
            slave_not_catchup_ms=config.ha_max_time_slave_not_catchup,
            slave_timeout_ms=config.slave_timeout,
            transfer_bytes_per_second_max=limit,
        )

    @classmethod
    def from_config(cls, config: BrokerConfig) -> HASettings:
        is_controlled = config.enable_controller_mode
        has_tls = config.twinlog_ha_tls
        return cls(
            role="SLAVE" if is_controlled else config.broker_role.value,
            bind_address=config.bind_address,
            listen_port=config.ha_listen_port,
            master_address=config.ha_master_address,
            in_sync_replicas=config.in_sync_replicas,
            tls=ha_tls(config.tls, is_master=config.is_master) if has_tls else None,
            dial_tls=ha_tls(config.tls, is_master=False) if has_tls and is_controlled else None,
        ).changed(config)

    @property
    def is_slave(self) -> bool:
        return self.role == "SLAVE"

    @property
    def is_sync(self) -> bool:
        return self.role == "SYNC_MASTER"

    @property
    def sync_limits(self) -> SyncLimits:
        return sync_limits(self.slave_fall_behind_max, self.slave_not_catchup_ms)

    def sender(self, segment_size: int) -> SenderSettings:
        return SenderSettings(
            segment_size=segment_size,
            batch_size=self.transfer_batch_size,
            heartbeat_interval_ms=self.send_heartbeat_interval_ms,
            housekeeping_interval_ms=self.housekeeping_interval_ms,
        )

    def receiver(self, segment_size: int) -> ReceiverSettings:
        return ReceiverSettings(
            segment_size=segment_size,
            heartbeat_interval_ms=self.send_heartbeat_interval_ms,
            housekeeping_interval_ms=self.housekeeping_interval_ms,
        )
