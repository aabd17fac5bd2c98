"""The keys of a `namesrv.conf`, typed. Corresponds to NamesrvConfig and NettyServerConfig, and to
5.x's ControllerConfig for a controller inside the name server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated

from twinlog.runtime import controller_config as keys
from twinlog.runtime.config_key import (
    Finding,
    Natural,
    Port,
    Positive,
    live,
    no_effect,
    refused,
    used,
)
from twinlog.runtime.server_config import NO_THREADS, RemotingConfig

_HOME = os.path.join(os.path.expanduser("~"), "namesrv")
_STILL_LISTS = (
    "twinlog's name server answers every account with its lists of topics; remove the key, and use"
    " aclEnable=true to keep strangers out"
)


class NamesrvConfig(RemotingConfig, kw_only=True):
    """Everything a name server can be told. Made from a file by `load_namesrv_config`."""

    listen_port: Annotated[Port, used("Port on which brokers and clients are served.")] = 9876
    kv_config_path: Annotated[str, used(
        "File in which the name server keeps its table of values. The audit log is in"
        " twinlog/ next to it."
    )] = os.path.join(_HOME, "kvConfig.json")  # fmt: skip
    config_store_path: Annotated[str, used(
        "File to which settings changed at run time are written.",
        default="the file given with -c, else ~/namesrv/namesrv.properties"
    )] = os.path.join(_HOME, "namesrv.properties")  # fmt: skip
    order_message_enable: Annotated[
        bool, live("Put the order configuration of a topic into its route.")
    ] = False
    config_black_list: Annotated[
        str, used("Keys that can never be changed at run time, separated by semicolons.")
    ] = "configBlackList;configStorePath;kvConfigPath"
    use_tls: Annotated[bool, used(
        "Connect to brokers over TLS, for the controller inside the name server."
    )] = False  # fmt: skip
    product_env_name: Annotated[
        str, no_effect("The environment that clusterTest asks.", "clusterTest is refused")
    ] = "center"
    cluster_test: Annotated[bool, refused(
        "Answer for unknown topics from the name servers of another environment.",
        "twinlog's name server asks no other environment, so clients would find no route;"
        " remove the key"
    )] = False  # fmt: skip

    # Keys of 5.x.
    scan_not_active_broker_interval: Annotated[Positive, no_effect(
        "How often the name server looks for brokers that are gone, in ms.",
        "the name server looks every 500 ms, and notices a closed connection at once"
    )] = 5000  # fmt: skip
    need_wait_for_service: Annotated[bool, refused(
        "Answer no route for waitSecondsForService after a start, until all brokers have"
        " registered.",
        "twinlog's name server answers from the start with the brokers that it knows; "
        "remove the key"
    )] = False  # fmt: skip
    wait_seconds_for_service: Annotated[
        Natural, no_effect("How long needWaitForService waits.", "needWaitForService is refused")
    ] = 45
    support_acting_master: Annotated[bool, refused(
        "Hand out the slave with the smallest id as a master when a group has lost its master.",
        "twinlog's name server lists brokers under the ids that they registered; consumers "
        "read from a slave without this key. Remove the key"
    )] = False  # fmt: skip
    notify_min_broker_id_changed: Annotated[bool, no_effect(
        "Tell brokers when the smallest id of their group changes.",
        "the key belongs to supportActingMaster, which is refused", is_missed=True
    )] = False  # fmt: skip
    delete_topic_with_broker_registration: Annotated[bool, no_effect(
        "Forget a broker's topics that its next registration does not name.",
        "routes are removed when their topic is deleted, not by a registration", is_missed=True
    )] = False  # fmt: skip
    return_order_topic_config_to_broker: Annotated[bool, no_effect(
        "Answer a registration with the order configuration of topics.",
        "the answer always contains it"
    )] = True  # fmt: skip
    enable_all_topic_list: Annotated[
        bool, refused("Answer requests for the list of all topics.", _STILL_LISTS)
    ] = True
    enable_topic_list: Annotated[
        bool, refused("Answer requests for lists of some of the topics.", _STILL_LISTS)
    ] = True

    # A controller inside the name server: keys of 5.x.
    enable_controller_in_namesrv: Annotated[
        bool, used("Run a controller in the name server's process, on a port of its own.")
    ] = False
    twinlog_controller_port: Annotated[Port | None, used(
        "Port of the controller inside the name server.",
        default="the port of this controller in controllerDLegerPeers, else 9878"
    )] = None  # fmt: skip
    controller_store_path: keys.StorePath = keys.STORE_PATH
    controller_d_leger_group: keys.DLegerGroup = keys.DLEGER_GROUP
    controller_d_leger_peers: keys.DLegerPeers = None
    controller_d_leger_self_id: keys.DLegerSelfId = keys.DLEGER_SELF_ID
    enable_elect_unclean_master: keys.ElectUnclean = False
    notify_broker_role_changed: keys.Notify = True
    twinlog_lease_ms: keys.LeaseMs = keys.LEASE_MS
    twinlog_controller_etcd: keys.Etcd = ""
    process_read_event: Annotated[
        bool, no_effect("Put the controller's reads into its log.", keys.OWN_STORE)
    ] = False

    # Threads of a JVM.
    default_thread_pool_nums: Annotated[
        int, no_effect("Threads that handle requests of brokers.", NO_THREADS)
    ] = 16
    default_thread_pool_queue_capacity: Annotated[
        int, no_effect("Requests of brokers that may wait for a thread.", NO_THREADS)
    ] = 10000
    client_request_thread_pool_nums: Annotated[
        int, no_effect("Threads that answer clients who ask for routes.", NO_THREADS)
    ] = 8
    client_request_thread_pool_queue_capacity: Annotated[
        int, no_effect("Requests of clients that may wait for a thread.", NO_THREADS)
    ] = 50000
    un_register_broker_queue_capacity: Annotated[
        int, no_effect("Brokers that may wait to be removed from routes.", NO_THREADS)
    ] = 3000
    controller_thread_pool_nums: Annotated[
        int, no_effect("Threads of the controller.", NO_THREADS)
    ] = 16
    controller_request_thread_pool_queue_capacity: Annotated[
        int, no_effect("Requests that may wait for a thread of the controller.", NO_THREADS)
    ] = 50000

    @property
    def controller(self) -> keys.ControllerConfig:
        """The configuration of the controller inside the name server."""
        return keys.ControllerConfig(
            rocketmq_home=self.rocketmq_home,
            bind_address=self.bind_address,
            acl_enable=self.acl_enable,
            use_tls=self.use_tls,
            tls=self.tls,
            listen_port=self.twinlog_controller_port,
            controller_store_path=self.controller_store_path,
            controller_d_leger_group=self.controller_d_leger_group,
            controller_d_leger_peers=self.controller_d_leger_peers,
            controller_d_leger_self_id=self.controller_d_leger_self_id,
            notify_broker_role_changed=self.notify_broker_role_changed,
            twinlog_lease_ms=self.twinlog_lease_ms,
            twinlog_controller_etcd=self.twinlog_controller_etcd,
        )

    def check(self) -> list[Finding]:
        """What no single value can show."""
        return [*super().check(), *self._check_controller(), *self._check_tls()]

    def _check_controller(self) -> Iterator[Finding]:
        if not self.enable_controller_in_namesrv:
            return
        controller = self.controller
        findings = controller.check()
        yield from findings
        if not findings and self.listen_port and controller.service_port == self.listen_port:
            text = f"the controller's port {self.listen_port} is also the name server's"
            yield Finding("twinlogControllerPort", text, about=("listenPort",))

    def _check_tls(self) -> Iterator[Finding]:
        if self.use_tls and not self.enable_controller_in_namesrv:
            text = (
                "a name server without a controller connects to nobody; tls.server.mode=enforcing"
                " makes it accept TLS only"
            )
            yield Finding("useTLS", text)
