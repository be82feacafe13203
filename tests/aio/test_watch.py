"""file watch: create, poll with the SDK's `since`, wait, events as a stream and plain, stop."""

from __future__ import annotations

import threading

import httpx
import pytest
from agent_sandbox import Sandbox as Client
from agent_sandbox.core.api_error import ApiError


def until(client: Client, watcher: str, last: str) -> list[str]:
    told: list[str] = []
    since = 0
    for _ in range(20):
        page = client.file.watch_poll(watcher, since=since, timeout=5)
        assert page["data"]["events"] == page["events"]
        since = page["cursor"]
        told += [f"{e['type']} {e['relative_path']}" for e in page["events"]]
        if last in told:
            return told
    raise AssertionError(f"{last} did not come: {told}")


@pytest.fixture
def watcher(client: Client, folder: str):
    made = client.file.watch_create(path=folder, debounce=50)
    assert made["watcher_id"] == made["data"]["watcher_id"]
    yield made["watcher_id"]
    client.file.watch_stop(made["watcher_id"])


def test_changes_of_commands_are_told(client: Client, folder: str, watcher: str) -> None:
    client.bash.exec(command=f"cd {folder} && mkdir -p a/b && echo 1 > a/b/f && touch x.pyc")
    assert "create a/b/f" in until(client, watcher, "create a/b/f")
    client.bash.exec(command=f"cd {folder} && mv a/b/f g && sleep 0.2 && rm g && sleep 0.2 && touch end")
    told = until(client, watcher, "create end")
    assert {"rename g", "remove g"} <= set(told)
    assert not any("pyc" in t for t in told)
    assert [w["watcher_id"] for w in client.file.watch_list()["watchers"]] == [watcher]


def test_events_stream_and_the_sdks_plain_call(client: Client, http: httpx.Client, folder: str, watcher: str) -> None:
    seen: list[str] = []
    with http.stream("GET", f"/v1/file/watch/{watcher}/events", headers={"Accept": "text/event-stream"}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            seen.append(line)
            if line == "event: watch_started":
                client.file.write_file(file=f"{folder}/f", content="x")
            if line.startswith("data:") and '"relative_path":"f"' in line:
                break
    assert "event: file_change" in seen
    assert f"id: {watcher}:1" in seen
    assert client.file.watch_events(watcher)["events"][0]["relative_path"] == "f"


def test_wait(client: Client, folder: str) -> None:
    later = threading.Timer(0.3, lambda: client.file.write_file(file=f"{folder}/deep/f", content="x"))
    later.start()
    event = client.file.watch_wait(path=f"{folder}/deep/f", timeout=20)["event"]
    assert (event["type"], event["path"]) == ("create", f"{folder}/deep/f")
    later.join()
    assert client.file.watch_wait(path=f"{folder}/deep/f", timeout=5)["event"]["type"] == "create"
    missed = client.file.watch_wait(path=f"{folder}/never", timeout=1)
    assert missed["event"] is None
    assert missed["success"] is False


def test_unknown_watchers_and_paths(client: Client, folder: str) -> None:
    for call in (
        lambda: client.file.watch_poll("w-none", timeout=0),
        lambda: client.file.watch_stop("w-none"),
        lambda: client.file.watch_events("w-none"),
        lambda: client.file.watch_create(path=f"{folder}/missing"),
    ):
        with pytest.raises(ApiError) as error:
            call()
        assert error.value.status_code == 404
