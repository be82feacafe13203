"""The cluster, and a namespace for each test file."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from clusters import Cluster, Namespace


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return Cluster.of_environment()


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    namespace = Namespace(cluster, f"t-{uuid.uuid4().hex[:8]}")
    cluster.run("create", "namespace", namespace.name)
    # Pods are refused before it exists.
    namespace.run("wait", "--for=create", "serviceaccount/default", "--timeout=30s")
    try:
        yield namespace
    finally:
        namespace.delete()
