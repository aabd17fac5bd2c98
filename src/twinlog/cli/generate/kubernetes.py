"""`twinlog generate kubernetes`: plain manifests for a cluster that heals itself.

A StatefulSet of one name server with the controller in it, and one StatefulSet for each group,
whose pods all have the same configuration: the controller gives the ids and elects the masters. A
pod is ready when its broker serves in its role; a disruption budget keeps all replicas but one.
Replicas on different nodes prove who they are with a secret, which is an object of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from twinlog.cli.generate.cluster_keys import (
    BROKER_PORT,
    CONFIGURATION,
    CONTROLLER_PORT,
    EVERYWHERE,
    HEALTH_PORT,
    NAME_SERVER_PORT,
    RUN,
    STATE,
    Keys,
    broker_keys,
    failover_keys,
    group_name,
    name_server_keys,
    new_secret,
)
from twinlog.cli.generate.documents import dump, properties
from twinlog.cli.generate.values import IMAGE, NAMESPACE, SECRET, STORAGE, STORAGE_CLASS

USER = 3000
_NAME_SERVER = "twinlog-namesrv"
_SECRET = "twinlog-ha"


@dataclass(frozen=True, slots=True)
class Plan:
    """What the cluster has."""

    namespace: str
    image: str
    groups: int
    replicas: int
    storage: str
    storage_class: str | None
    secret: str


@click.command(epilog="Example: twinlog generate kubernetes --groups 2 | kubectl apply -f -")
@click.option("--namespace", default="default", show_default=True, type=NAMESPACE,
              help="Namespace of all objects.")  # fmt: skip
@click.option("--image", default="twinlog", show_default=True, type=IMAGE,
              help="The image, as built from Containerfile.")  # fmt: skip
@click.option("--groups", default=1, show_default=True, type=click.IntRange(1, 26),
              help="Number of broker groups.")  # fmt: skip
@click.option("--brokers", "replicas", default=3, show_default=True, type=click.IntRange(2, 5),
              help="Number of replicas in each group.")  # fmt: skip
@click.option("--storage", default="20Gi", show_default=True, type=STORAGE,
              help="Size of each broker's disk.")  # fmt: skip
@click.option("--storage-class", type=STORAGE_CLASS,
              help="Storage class of the volumes; otherwise the default one.")  # fmt: skip
@click.option("--ha-secret", "secret", type=SECRET, default=new_secret, envvar="TWINLOG_HA_SECRET",
              help="Shared secret of the replicas; if not given, a new random one.")  # fmt: skip
def kubernetes(**options: Any) -> None:
    """Print manifests: StatefulSets with failover, services, probes and disruption budgets."""
    click.echo(dump(kubernetes_documents(Plan(**options))), nl=False)


def kubernetes_documents(plan: Plan) -> list[dict[str, Any]]:
    """The manifests as data."""
    documents = [
        _config_map(plan, _NAME_SERVER, "namesrv.conf", properties(_name_server_keys())),
        _service(plan, _NAME_SERVER, {"namesrv": NAME_SERVER_PORT, "controller": CONTROLLER_PORT}),
        _name_server_set(plan),
        _secret(plan),
    ]
    for index in range(plan.groups):
        group = group_name(index)
        documents += [
            _config_map(plan, group, "broker.conf", properties(_broker_keys(plan, group))),
            _service(plan, group, {"broker": BROKER_PORT, "ha": BROKER_PORT + 1}),
            _disruption_budget(plan, group),
            _broker_set(plan, group),
        ]
    return documents


def _name_server_keys() -> Keys:
    return {**name_server_keys(has_controller=True), "metricsPromExporterHost": EVERYWHERE}


def _broker_keys(plan: Plan, group: str) -> Keys:
    role = failover_keys(_NAME_SERVER, plan.replicas)
    keys = broker_keys(group, role, f"{_NAME_SERVER}:{NAME_SERVER_PORT}")
    return {**keys, "metricsPromExporterHost": EVERYWHERE}


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "twinlog", "app.kubernetes.io/instance": name}


def _metadata(plan: Plan, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": plan.namespace, "labels": _labels(name)}


def _config_map(plan: Plan, name: str, file: str, content: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(plan, name),
        "data": {file: content},
    }


def _secret(plan: Plan) -> dict[str, Any]:
    """Immutable: with another one, restarted pods could not replicate with those that run."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(plan, _SECRET),
        "immutable": True,
        "stringData": {"secret.conf": properties({"twinlogHASecret": plan.secret})},
    }


def _service(plan: Plan, name: str, ports: dict[str, int]) -> dict[str, Any]:
    """Headless: clients and replicas talk to pods, and also to those that are not ready yet."""
    listed = {**ports, "health": HEALTH_PORT}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(plan, name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _labels(name),
            "ports": [{"name": key, "port": port} for key, port in listed.items()],
        },
    }


def _disruption_budget(plan: Plan, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(plan, name),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _labels(name)}},
    }


def _name_server_set(plan: Plan) -> dict[str, Any]:
    command = ["twinlog", "namesrv", "-c", f"{CONFIGURATION}/namesrv.conf"]
    ports = {"namesrv": NAME_SERVER_PORT, "controller": CONTROLLER_PORT, "health": HEALTH_PORT}
    return _stateful_set(plan, _NAME_SERVER, 1, command, ports, "1Gi")


def _broker_set(plan: Plan, group: str) -> dict[str, Any]:
    """The address of a pod is known when it runs: its own lines are added to the shared file."""
    own = f"$(hostname).{group}.{plan.namespace}.svc"
    script = (
        f"umask 077 && cat {CONFIGURATION}/broker.conf {CONFIGURATION}/secret.conf"
        f" > {RUN}/broker.conf && "
        f'printf "brokerIP1={own}\\nbrokerIP2={own}\\n" >> {RUN}/broker.conf && '
        f"exec twinlog broker -c {RUN}/broker.conf"
    )
    ports = {"broker": BROKER_PORT, "ha": BROKER_PORT + 1, "health": HEALTH_PORT}
    return _stateful_set(plan, group, plan.replicas, ["sh", "-c", script], ports, plan.storage)


def _stateful_set(
    plan: Plan, name: str, count: int, command: list[str], ports: dict[str, int], storage: str
) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(plan, name),
        "spec": {
            "serviceName": name,
            "replicas": count,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": _labels(name)},
            "template": {
                "metadata": {"labels": _labels(name)},
                "spec": _pod(plan, name, command, ports),
            },
            "volumeClaimTemplates": [_claim(plan, storage)],
        },
    }


def _pod(plan: Plan, name: str, command: list[str], ports: dict[str, int]) -> dict[str, Any]:
    return {
        "terminationGracePeriodSeconds": 60,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {"podAntiAffinity": _apart(name)},
        "containers": [_container(plan, command, ports)],
        "volumes": [
            {"name": "configuration", "projected": {"sources": _sources(name)}},
            {"name": "run", "emptyDir": {"medium": "Memory"}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }


def _sources(name: str) -> list[dict[str, Any]]:
    """What a server finds in its folder of configuration; only brokers replicate."""
    sources: list[dict[str, Any]] = [{"configMap": {"name": name}}]
    if name != _NAME_SERVER:
        sources.append({"secret": {"name": _SECRET}})
    return sources


def _container(plan: Plan, command: list[str], ports: dict[str, int]) -> dict[str, Any]:
    return {
        "name": "twinlog",
        "image": plan.image,
        "command": command,
        "ports": [{"name": key, "containerPort": port} for key, port in ports.items()],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "startupProbe": {**_probe("live"), "failureThreshold": 60},
        "livenessProbe": {**_probe("live"), "failureThreshold": 6},
        "readinessProbe": _probe("ready"),
        "resources": {
            "requests": {"cpu": "250m", "memory": "256Mi"},
            "limits": {"memory": "1Gi"},
        },
        "volumeMounts": [
            {"name": "state", "mountPath": STATE},
            {"name": "configuration", "mountPath": CONFIGURATION, "readOnly": True},
            {"name": "run", "mountPath": RUN},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _probe(kind: str) -> dict[str, Any]:
    return {
        "httpGet": {"path": f"/health/{kind}", "port": "health"},
        "periodSeconds": 5,
        "timeoutSeconds": 3,
    }


def _apart(name: str) -> dict[str, Any]:
    """Replicas of one group on different machines, where there are enough."""
    return {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "podAffinityTerm": {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {"matchLabels": _labels(name)},
                },
            }
        ]
    }


def _claim(plan: Plan, storage: str) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": storage}},
    }
    if plan.storage_class is not None:
        spec["storageClassName"] = plan.storage_class
    return {"metadata": {"name": "state"}, "spec": spec}
