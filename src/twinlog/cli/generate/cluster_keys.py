"""What name servers and brokers in containers are told, whoever runs the containers."""

from __future__ import annotations

import secrets

NAME_SERVER_PORT = 9876
CONTROLLER_PORT = 9878
BROKER_PORT = 10911
HEALTH_PORT = 5557
STATE = "/var/lib/twinlog"
CONFIGURATION = "/etc/twinlog"
RUN = "/run/twinlog"  # In memory: files that a start writes.
EVERYWHERE = "0.0.0.0"

# Containerfile has it too, for those who start a container by hand.
HEALTH_CHECK = (
    "import urllib.request as u; "
    f"u.urlopen('http://127.0.0.1:{HEALTH_PORT}/health/live', timeout=2)"
)

Keys = dict[str, object]


def new_secret() -> str:
    """With which replicas prove to each other who they are: a master serves no stranger."""
    return secrets.token_hex(16)


def group_name(index: int) -> str:
    """broker-a, broker-b, ..."""
    return f"broker-{chr(ord('a') + index)}"


def name_server_keys(port: int = NAME_SERVER_PORT, *, has_controller: bool) -> Keys:
    keys: Keys = {
        "listenPort": port,
        "bindAddress": EVERYWHERE,
        "kvConfigPath": f"{STATE}/kvConfig.json",
    }
    if has_controller:
        keys |= {
            "enableControllerInNamesrv": "true",
            "twinlogControllerPort": CONTROLLER_PORT,
            "controllerStorePath": f"{STATE}/controller",
        }
    return keys


def broker_keys(group: str, role: Keys, name_servers: str, port: int = BROKER_PORT) -> Keys:
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerName": group,
        **role,
        "namesrvAddr": name_servers,
        "listenPort": port,
        "bindAddress": EVERYWHERE,
        "storePathRootDir": f"{STATE}/store",
        "slaveReadEnable": "true",
    }


def failover_keys(controller_host: str, replicas: int) -> Keys:
    """Of a broker whose role the controller decides."""
    return {
        "enableControllerMode": "true",
        "controllerAddr": f"{controller_host}:{CONTROLLER_PORT}",
        # Otherwise an election could lose messages that were answered with SEND_OK.
        "brokerRole": "SYNC_MASTER",
        "totalReplicas": replicas,
        "minInSyncReplicas": 2 if replicas > 2 else 1,
    }
