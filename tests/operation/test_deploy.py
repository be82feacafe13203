"""The files in `deploy/`: every series of the dashboard and the alerts is in /metrics, and the chart's renderings are sound."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from arenite_server import REPOSITORY, Server, binary
from authority import Authority
from tenant import TenantsServer

OURS = re.compile(r"\b(?:arenite|process)_[a-z0-9_]+")
DASHBOARD = REPOSITORY / "deploy/grafana/arenite.json"
RULES = REPOSITORY / "deploy/prometheus/arenite.rules.yml"


@pytest.fixture
def families(own_server: Callable[..., Server], authority: Authority) -> dict[str, str]:
    """The names of /metrics and their kinds, of a server with TLS and tenants, which add some. A histogram has four names."""
    server = own_server(args=("--tls-cert", str(authority.cert), "--tls-key", str(authority.key), "--tenants"))
    server.scheme = "https"
    server.start()
    key = TenantsServer(server).operator.key
    text = httpx.get(f"{server.url}/metrics", timeout=60, headers={"x-api-key": key}).raise_for_status().text
    declared = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE "))
    parts = {f"{name}{part}": "counter" for name, kind in declared.items() if kind == "histogram" for part in ("_bucket", "_sum", "_count")}
    return declared | parts


def expressions(value: Any) -> list[str]:
    """Every query in a dashboard or in rules, wherever it is."""
    if isinstance(value, dict):
        found = [text for key, text in value.items() if key in ("expr", "query") and isinstance(text, str)]
        return found + [text for inner in value.values() for text in expressions(inner)]
    return [text for inner in value for text in expressions(inner)] if isinstance(value, list) else []


def test_every_series_of_the_dashboard_and_the_alerts_exists(families: dict[str, str]) -> None:
    rules = yaml.safe_load(RULES.read_text())
    for file, content in ((DASHBOARD, json.loads(DASHBOARD.read_text())), (RULES, rules)):
        queries = expressions(content)
        used = {name for query in queries for name in OURS.findall(query)}
        assert len(used) > 10, (file, used)
        assert not used - set(families), (file, used - set(families))
        for query in queries:
            assert query.count("(") == query.count(")") and query.count("{") == query.count("}"), query
            # Only counters can be compared over time, and only buckets have quantiles.
            for name in re.findall(r"(?:rate|increase)\((\w+)", query):
                assert families[name] == "counter", (name, query)
            for quantile in re.findall(r"histogram_quantile\(.*", query):
                assert "_bucket" in quantile and "le" in quantile, query


def test_the_dashboard_shows_all_that_metrics_have(families: dict[str, str]) -> None:
    """A new series is either shown or left out on purpose."""
    queries = expressions(json.loads(DASHBOARD.read_text()))
    used = {name for query in queries for name in OURS.findall(query)}
    left_out = {
        "arenite_tls_certificate_outdated",
        "arenite_http_request_seconds_sum",
        "arenite_http_request_seconds_count",
        "arenite_webhook_deliveries_waiting",
    }
    histograms = {"arenite_http_request_seconds"}
    assert set(families) - used == left_out | histograms


def test_alerts_say_what_to_do_and_panels_do_not_overlap() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("info", "warning", "critical"), rule
        assert rule["annotations"]["summary"] and rule["annotations"]["description"], rule
    taken: set[tuple[int, int]] = set()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


RENDERINGS = [REPOSITORY / "deploy/install.yaml", *sorted((REPOSITORY / "deploy/helm/golden").glob("*.yaml"))]
RENDERINGS = [file for file in RENDERINGS if not file.name.endswith(".values.yaml")]
NODES = [file for file in RENDERINGS if file.name.startswith("nodes")]
PODS = [file for file in RENDERINGS if file not in NODES]
COMPOSE = REPOSITORY / "deploy/compose.yaml"


def objects(file: Path) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(file.read_text()) if item]


def pod_specs(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for item in objects(file):
        if item["kind"] in ("Deployment", "StatefulSet", "DaemonSet"):
            yield f"{item['kind']} {item['metadata']['name']}", item["spec"]["template"]["spec"]


def of_kind(file: Path, kind: str) -> list[dict[str, Any]]:
    return [item for item in objects(file) if item["kind"] == kind]


@pytest.mark.parametrize("file", RENDERINGS, ids=lambda file: file.name)
def test_the_charts_pods_are_restricted(file: Path) -> None:
    """The rules of PodSecurity's level `restricted`, and a read-only root besides. The cluster's tests ask the API server."""
    found = dict(pod_specs(file))
    assert found
    if file in NODES:
        found.pop("DaemonSet arenite")
    for name, pod in found.items():
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True and security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), name
        assert all(set(volume) - {"name"} <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim"} for volume in pod["volumes"])
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert "limits" in container["resources"], name


@pytest.mark.parametrize("file", NODES, ids=lambda file: file.name)
def test_the_pods_of_nodes_have_the_machine_and_no_rights_in_the_cluster(file: Path) -> None:
    assert {item["kind"] for item in objects(file)} == {
        *("ConfigMap", "DaemonSet", "NetworkPolicy", "Service", "ServiceAccount"),
        *({"Secret", "StatefulSet"} if file.name == "nodes-postgres.yaml" else {"ServiceMonitor"}),
    }
    pods = dict(pod_specs(file))
    assert not any(pod["automountServiceAccountToken"] for pod in pods.values())
    node = pods["DaemonSet arenite"]
    assert node["hostPID"] is True and not {"hostNetwork", "hostIPC"} & node.keys() and node["nodeSelector"]
    (container,) = node["containers"]
    assert container["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    data_dir = environment_of(container)["ARENITE_DATA_DIR"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in node["volumes"] if "hostPath" in volume}
    # Servers of one machine know each other's cgroups by the path of the data directory.
    assert paths == {"data": data_dir, "dev": "/dev", "cgroup": "/sys/fs/cgroup"}
    assert {name: mounts[name] for name in paths} == paths


@pytest.mark.parametrize("file", NODES, ids=lambda file: file.name)
def test_nodes_are_replaced_one_by_one_and_only_they_reach_each_other(file: Path) -> None:
    (daemons,) = of_kind(file, "DaemonSet")
    ours = daemons["spec"]["selector"]["matchLabels"]
    assert ours["app.kubernetes.io/component"] == "node"
    assert daemons["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    ports = {port["name"]: port["containerPort"] for port in daemons["spec"]["template"]["spec"]["containers"][0]["ports"]}
    (service,) = [item["spec"] for item in of_kind(file, "Service") if item["metadata"]["name"] == "arenite"]
    assert (service["sessionAffinity"], service["selector"]) == ("ClientIP", ours)
    assert [port["targetPort"] for port in service["ports"]] == ["http"]
    rules = {}
    for policy in of_kind(file, "NetworkPolicy"):
        selected = policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        assert "Ingress" in policy["spec"]["policyTypes"]
        for rule in policy["spec"]["ingress"]:
            (port,) = rule["ports"]
            rules[selected, port["port"]] = rule.get("from")
    only_nodes = [{"podSelector": {"matchLabels": ours}}]
    assert rules.pop(("node", "nodes")) == only_nodes and ports == {"http": 8080, "nodes": 8902}
    assert ("node", "http") in rules and rules.get(("postgres", 5432), only_nodes) == only_nodes


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    """What a container's program finds in its environment, with values in place of references."""
    given = {"spec.nodeName": "ip-10-0-0-1.eu-west-1.compute.internal", "status.podIP": "10.1.2.3"}
    secret = {"ARENITE_API_KEY": "a-key-of-the-golden-files", "ARENITE_STORE": "postgres://u:p@h/d"}
    found: dict[str, str] = {}
    for entry in container.get("env", []):
        if "value" in entry:
            found[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], entry["value"])
        elif field := entry["valueFrom"].get("fieldRef"):
            found[entry["name"]] = given[field["fieldPath"]]
        else:
            found[entry["name"]] = secret[entry["name"]]
    return found


@pytest.mark.parametrize("file", PODS, ids=lambda file: file.name)
def test_the_chart_grants_the_listed_rights_and_no_others(file: Path) -> None:
    wanted = {
        ("", "pods"): {"create", "get", "list", "watch", "delete"},
        ("", "events"): {"list", "watch"},
        ("", "secrets"): {"create", "get", "list", "patch", "delete"},
        ("", "persistentvolumeclaims"): {"create", "get", "list", "patch", "delete"},
    }
    if "kubernetes_warm_pool" in file.read_text():
        wanted[("", "pods")].add("patch")
        wanted[("extensions.agents.x-k8s.io", "sandboxclaims")] = {"create", "get", "list", "watch", "delete"}
        wanted[("agents.x-k8s.io", "sandboxes")] = {"get"}
    everywhere = {("authentication.k8s.io", "tokenreviews"): {"create"}}

    def rights(kind: str) -> dict[tuple[str, str], set[str]]:
        (role,) = [item for item in objects(file) if item["kind"] == kind]
        rules = role["rules"]
        return {(group, resource): set(rule["verbs"]) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]}

    assert rights("Role") == wanted
    assert rights("ClusterRole") == everywhere
    text = (REPOSITORY / "docs/KUBERNETES.md").read_text()
    missing = [resource for _, resource in [*wanted, *everywhere] if f"`{resource}`" not in text]
    assert not missing, "docs/KUBERNETES.md says what each right is for"


@pytest.mark.parametrize("file", PODS, ids=lambda file: file.name)
def test_the_charts_policies_close_what_other_engines_close(file: Path) -> None:
    policies = {item["metadata"]["name"]: item["spec"] for item in objects(file) if item["kind"] == "NetworkPolicy"}
    closed, opened = policies["arenite-sandboxes"], policies["arenite-sandboxes-open"]
    assert closed["podSelector"] == {"matchLabels": {"arenite.installation": "arenite"}}
    assert set(closed["policyTypes"]) == {"Ingress", "Egress"} and "egress" not in closed
    (only,) = closed["ingress"]
    assert [port["port"] for port in only["ports"]] == [8901] and len(only["from"]) == 1
    assert opened["podSelector"]["matchLabels"]["arenite.network"] == "open"
    (block,) = [peer["ipBlock"] for rule in opened["egress"] for peer in rule["to"] if peer.get("ipBlock", {}).get("cidr") == "0.0.0.0/0"]
    source = (REPOSITORY / "crates/engine/src/namespace/network/config.rs").read_text()
    table = source[source.index("pub const DENIED") :].split("];")[0]
    denied = set(re.findall(r'"([0-9.]+/[0-9]+)"', table))
    assert len(denied) > 10 and denied <= set(block["except"])
    assert "::" not in json.dumps(opened), "IPv6 stays closed"


def test_install_yaml_is_applied_to_one_namespace_and_has_no_secret() -> None:
    """`kubectl apply -n arenite` refuses objects of other namespaces, and a key in a file that all have would be no key."""
    everything = objects(REPOSITORY / "deploy/install.yaml")
    assert {item["metadata"].get("namespace", "arenite") for item in everything} == {"arenite"}
    assert "Secret" not in {item["kind"] for item in everything}
    (service,) = [item for item in everything if item["kind"] == "Service"]
    assert service["metadata"]["name"] == "arenite" and service["spec"]["ports"][0]["port"] == 80


@pytest.mark.parametrize("file", RENDERINGS, ids=lambda file: file.name)
def test_the_program_takes_the_charts_settings(file: Path, tmp_path: Path) -> None:
    (settings,) = [item["data"] for item in objects(file) if item["kind"] == "ConfigMap"]
    # What the pod mounts.
    text = settings["arenite.toml"].replace("/etc/arenite/", f"{tmp_path}/").replace("/secrets/", f"{tmp_path}/")
    (tmp_path / "pod-template.yaml").write_text(settings.get("pod-template.yaml", "{}"))
    made = Authority(tmp_path)
    for folder in ("tls", "identity"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tls/tls.crt").write_bytes(made.cert.read_bytes())
    (tmp_path / "tls/tls.key").write_bytes(made.key.read_bytes())
    key = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(tmp_path / "identity/identity.pem")]
    subprocess.run(key, check=True, capture_output=True)
    (tmp_path / "arenite.toml").write_text(text)
    (container,) = [pod["containers"][0] for name, pod in pod_specs(file) if not name.startswith("StatefulSet")]
    assert container["args"] == ["serve", "--config", "/etc/arenite/arenite.toml"]
    command = [str(binary()), "serve", "--config", str(tmp_path / "arenite.toml"), "--validate"]
    environment = environment_of(container)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    if file in NODES:
        shown = subprocess.run([*command[:-1], "--show-config"], env=environment, capture_output=True, text=True, timeout=60).stdout
        assert 'node_listen = "10.1.2.3:8902"' in shown and f'node = "{environment["ARENITE_NODE"]}"' in shown, shown
        environment["ARENITE_NODE"] = "no_host_name"
        assert subprocess.run(command, env=environment, capture_output=True, timeout=60).returncode != 0


def test_the_compose_file_starts_the_program_with_settings_that_it_takes() -> None:
    """operation/test_container_image.py runs it; `cargo xtask chart` asks the parser of `docker compose`."""
    text = COMPOSE.read_text()
    required = set(re.findall(r"\$\{(\w+):\?[^}]+\}", text))
    assert required == {"ARENITE_API_KEY", "POSTGRES_PASSWORD"}, "no key and no password has a default"
    text = re.sub(r"\$\{\w+:\?[^}]+\}", "0123456789abcdef0123456789abcdef", text)
    services = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))["services"]
    server = services["arenite"]
    version = yaml.safe_load((REPOSITORY / "deploy/helm/arenite/Chart.yaml").read_text())["appVersion"]
    assert server["image"] == f"arenite-node:{version}"
    assert all(port.startswith("127.0.0.1:") for port in server["ports"]) and "ports" not in services["postgres"]
    environment = server["environment"]
    known = subprocess.run([str(binary()), "serve", "--help"], capture_output=True, text=True, timeout=60).stdout
    assert set(environment) <= set(re.findall(r"\[env:\s+(\w+)", known))
    command = [str(binary()), *server["command"], "--validate"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    shown = subprocess.run([*command[:-1], "--show-config"], env=environment, capture_output=True, text=True, timeout=60).stdout
    assert f'data_dir = "{environment["ARENITE_DATA_DIR"]}"' in shown and "0123456789abcdef" not in shown, shown
    data = environment["ARENITE_DATA_DIR"]
    assert f"{data}:{data}" in server["volumes"]
    # Its health is what a command of the program says.
    kind, program, *words = server["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "/arenite")
    assert subprocess.run([str(binary()), *words, "--help"], capture_output=True, timeout=60).returncode == 0
