"""RocketMQ 5's controller: 904, 1001 to 1013. Fields that begin with `twinlog` are ours; Apache's
brokers and controllers leave them out and ignore them."""

from __future__ import annotations

from twinlog.remoting.headers.base import Header, Int, Long


class ControllerHeartbeatRequestHeader(Header):
    """904 as a controller gets it. `twinlogProcesses`: incarnations, separated by semicolons;
    `twinlogClock`: the boot clock when it left."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    heartbeat_timeout_mills: Long | None = None
    election_priority: Int | None = None
    twinlog_incarnation: str | None = None
    twinlog_known_epoch: Int | None = None
    twinlog_complete: bool = True
    twinlog_processes: str | None = None
    twinlog_writable: bool = True
    twinlog_link: Long | None = None
    twinlog_drained: Long | None = None
    twinlog_was_master: bool = False
    twinlog_clock: Long | None = None


class ControllerHeartbeatResponseHeader(Header):
    """Answer to 904 for a twinlog broker; the body is the group's record."""

    twinlog_lease_ms: Int | None = None
    twinlog_admitted: bool | None = None
    twinlog_hand_over: Long | None = None
    twinlog_frozen: str | None = None


class AlterSyncStateSetRequestHeader(Header):
    """1001; the body is the set. `twinlogIncarnations` is `id=incarnation;...` (rule R3),
    `twinlogReason` why a replica leaves."""

    broker_name: str
    master_broker_id: Long
    master_epoch: Int
    twinlog_incarnation: str | None = None
    twinlog_incarnations: str | None = None
    twinlog_reason: str | None = None


class AlterSyncStateSetResponseHeader(Header):
    new_sync_state_set_epoch: Int


class ElectMasterRequestHeader(Header):
    """1002."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Long = -1
    designate_elect: bool = False
    twinlog_unclean: str | None = None


class MasterResponseHeader(Header):
    """Who leads: answer to 1002 and 1004, and with the group to 1003."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


class RegisterBrokerToControllerRequestHeader(Header):
    """1003."""

    cluster_name: str
    broker_name: str
    broker_id: Long
    broker_address: str
    twinlog_ha_addr: str | None = None
    twinlog_uid: str | None = None
    twinlog_learner: bool = False
    twinlog_priority: Int | None = None
    twinlog_policy: str | None = None


class ReplicaInfoRequestHeader(Header):
    """1004."""

    broker_name: str


class ControllerMetadataResponseHeader(Header):
    """Answer to 1005. `twinlog` says that heartbeats are answered with the record."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None
    twinlog: str | None = None


class CleanBrokerDataRequestHeader(Header):
    """1011. `brokerControllerIdsToClean` is `1;2`."""

    cluster_name: str | None = None
    broker_name: str = ""
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False


class BrokerSetRequestHeader(Header):
    """1012."""

    cluster_name: str
    broker_name: str


class NextBrokerIdResponseHeader(Header):
    cluster_name: str
    broker_name: str
    next_broker_id: Long


class ApplyBrokerIdRequestHeader(Header):
    """1013. The check code begins with the broker's address: `127.0.0.1:10911;...`."""

    cluster_name: str
    broker_name: str
    applied_broker_id: Long
    register_check_code: str
    twinlog_uid: str | None = None
    twinlog_policy: str | None = None


class SetLearnerRequestHeader(Header):
    """10021."""

    broker_name: str
    broker_id: Long
    learner: bool


class AdoptRequestHeader(Header):
    """10022. The operator typed `twinlogGroup`; it must be the group's name."""

    broker_name: str
    twinlog_group: str = ""


class EventsRequestHeader(Header):
    """10023. Without a name all groups; `since` is a time of day in milliseconds."""

    broker_name: str | None = None
    since: Long | None = None
    limit: Int | None = None


class NotifyBrokerRoleChangedRequestHeader(Header):
    """1008: a hint (rule R11)."""

    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None
    master_broker_id: Long | None = None
