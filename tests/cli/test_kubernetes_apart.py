"""`twinlog generate kubernetes`, run: a network namespace in the place of each pod.

A pod has its own address, loopback and host name, and finds the others by the names that headless
services give them. Its configuration comes from the objects that its volumes name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from support.command_line import twinlog
from support.compose_apart import ComposeApart
from support.processes import wait_until

NAMESRV = ("-n", "twinlog-namesrv:9876")
Document = dict[str, Any]


def manifests(*options: str) -> list[Document]:
    return list(yaml.safe_load_all(twinlog("generate", "kubernetes", *options).ok().out))


def files_of(found: list[Document], pod: Document) -> dict[str, str]:
    """What the pod sees in its folder of configuration."""
    named = {(d["kind"], d["metadata"]["name"]): d for d in found}
    files: dict[str, str] = {}
    for volume in pod["volumes"]:
        sources = volume.get("projected", {}).get("sources", [volume])
        for source in sources:
            if "configMap" in source:
                files |= named["ConfigMap", source["configMap"]["name"]]["data"]
            if "secret" in source:
                files |= named["Secret", source["secret"]["name"]]["stringData"]
    return files


def as_compose(found: list[Document]) -> Document:
    """The same servers in the words of a compose file, under the names that pods have."""
    services: Document = {}
    configs: Document = {}
    for document in found:
        if document["kind"] != "StatefulSet":
            continue
        group, pod = document["metadata"]["name"], document["spec"]["template"]["spec"]
        for number in range(document["spec"]["replicas"]):
            host = f"{group}-{number}"
            name = group if group == "twinlog-namesrv" else f"{host}.{group}.default.svc"
            for file, text in files_of(found, pod).items():
                configs[f"{name}/{file}"] = {"content": text}
            services[name] = {
                "entrypoint": [],
                "command": pod["containers"][0]["command"],
                "hostname": host,
                "ports": [],
                "configs": [
                    {"source": f"{name}/{file}", "target": f"/etc/twinlog/{file}"}
                    for file in files_of(found, pod)
                ],
            }
    return {"services": services, "configs": configs}


def test_pods_replicate_and_elect_another_master(tmp_path: Path) -> None:
    with ComposeApart(tmp_path / "apart", as_compose(manifests())) as host:
        host.twinlog("cluster", "health", "--wait", "60s", "--brokers", 3, *NAMESRV).ok()
        host.twinlog("topic", "produce", "orders", "--create", "one", *NAMESRV).ok()
        rows = host.twinlog("broker", "list", "-o", "json", *NAMESRV).ok().json
        (master,) = [row["address"].partition(":")[0] for row in rows if row["id"] == 0]
        host.kill(master)
        words = ("topic", "produce", "orders", "two", *NAMESRV)
        wait_until(lambda: host.twinlog(*words).code == 0, "another pod is the master")
        read = host.twinlog("topic", "consume", "orders", "-o", "start", "-e", "--body", *NAMESRV)
        assert {"one", "two"} <= set(read.ok().out.split())
