"""Generated manifests, judged by Kubernetes' own schema, without a cluster."""

from __future__ import annotations

import pytest

from twinlog.cli.generate.kubernetes import Plan, kubernetes_documents

pytestmark = pytest.mark.dist

VERSIONS = ("1.30", "1.37")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("groups", "replicas"), [(1, 2), (2, 3), (26, 5)])
def test_every_manifest_fits_the_schema(version: str, groups: int, replicas: int) -> None:
    import kubernetes_validate

    plan = Plan("messaging", "local/twinlog:1", groups, replicas, "5Gi", "fast", "a-secret")
    documents = kubernetes_documents(plan)
    assert len(documents) == 4 + 4 * groups
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schema_refuses_what_is_wrong() -> None:
    import kubernetes_validate

    plan = Plan("messaging", "twinlog", 1, 2, "5Gi", None, "a-secret")
    wrong = kubernetes_documents(plan)[-1]
    wrong["spec"]["replicaz"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)
