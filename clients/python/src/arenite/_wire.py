"""What the sync and the async client share: addresses, headers, errors, retries, and events. It does no I/O."""

from __future__ import annotations

import email.utils
import json
import os
import random
import re
import ssl
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from .errors import APIError, AreniteError, ConnectionFailed, RequestTimedOut, code_of_status, error_class

DEFAULT_SERVER = "http://127.0.0.1:8080"
#: Seconds to connect.
CONNECT_TIMEOUT = 5.0
#: Seconds of a create, which may wait for an image.
CREATE_TIMEOUT = 240.0
#: Seconds that an answer may take longer than the work itself.
MARGIN = 30.0
#: The longest pause before a repetition that the server may ask for, in seconds.
MAX_RETRY_AFTER = 30.0
MAX_PAUSE = 5.0
#: A stream that ends after one of these continues in another connection.
RECONNECT_AFTER = ("behind", "server_stopping")


@dataclass(frozen=True)
class Call:
    """A request, which may be sent several times."""

    method: str
    path: str
    params: Mapping[str, Any] | None = None
    json: Any = None
    data: Mapping[str, str] | None = None
    files: Mapping[str, Any] | None = None
    #: Bytes, or an iterator over them.
    content: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Seconds to wait for the next part of the answer.
    timeout: float = 60.0
    idempotency_key: str | None = None


def base_url(given: str | None) -> str:
    url = given or os.environ.get("ARENITE_SERVER") or DEFAULT_SERVER
    if not re.match(r"https?://[^/?#@\s]+(/[^?#\s]*)?$", url):
        raise ValueError(f"invalid address {url!r}: it starts with http:// or https://, and has no query")
    return url.rstrip("/")


def headers(api_key: str | None) -> dict[str, str]:
    key = api_key if api_key is not None else os.environ.get("ARENITE_API_KEY")
    return {"user-agent": "arenite-python", **({"x-api-key": key} if key else {})}


def trust(base_url: str, ca: str | None) -> ssl.SSLContext | bool:
    """The certificate authorities: those of a PEM file, otherwise the usual ones."""
    if base_url.startswith("http://"):
        # Reading them takes longer than a call.
        return False
    file = ca or os.environ.get("ARENITE_CA")
    return ssl.create_default_context(cafile=file) if file else True


def segment(text: str) -> str:
    """A text as one segment of a path."""
    return urllib.parse.quote(text, safe="")


def arguments(call: Call) -> dict[str, Any]:
    """The arguments for httpx, without method and URL."""
    found: dict[str, Any] = {
        "headers": {**call.headers, **({"idempotency-key": call.idempotency_key} if call.idempotency_key else {})},
        "timeout": httpx.Timeout(call.timeout, connect=CONNECT_TIMEOUT, pool=None),
    }
    if call.params:
        found["params"] = {name: value for name, value in call.params.items() if value is not None}
    for name in ("json", "data", "files", "content"):
        if (value := getattr(call, name)) is not None:
            found[name] = value
    return found


def present(**fields: Any) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


class Attempts:
    """Decides whether a failed request is sent again, and after which pause."""

    def __init__(self, call: Call, retries: int) -> None:
        self._is_read = call.method in ("GET", "HEAD")
        self._statuses: tuple[int, ...] = ()
        if self._is_read:
            self._statuses = (429, 502, 503, 504)
        elif call.idempotency_key:
            self._statuses = (429, 503)
        self._left = retries
        self._count = 0

    def pause(self, failure: AreniteError) -> float | None:
        """Seconds to wait; None: do not repeat."""
        if self._left <= 0 or not self._is_safe(failure):
            return None
        self._left -= 1
        self._count += 1
        asked = failure.retry_after if isinstance(failure, APIError) else None
        if asked is not None:
            return asked if asked <= MAX_RETRY_AFTER else None
        return backoff(self._count)

    def _is_safe(self, failure: AreniteError) -> bool:
        if isinstance(failure, APIError):
            return failure.status in self._statuses
        # A refused connection never reached the server.
        return bool(self._statuses) or isinstance(failure.__cause__, (httpx.ConnectError, httpx.ConnectTimeout))


def backoff(count: int) -> float:
    return float(min(0.25 * 2 ** (count - 1), MAX_PAUSE) * random.uniform(0.75, 1.25))


def broken(error: httpx.TransportError, server: str) -> ConnectionFailed:
    """The failure of a request without a complete answer."""
    failure: ConnectionFailed
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        failure = ConnectionFailed(
            f"no server answers at {server}: {error} "
            "(hint: start one with: sudo arenite serve; or name another with base_url or ARENITE_SERVER)"
        )
    elif isinstance(error, httpx.TimeoutException):
        failure = RequestTimedOut(f"{server} did not answer in time")
    else:
        failure = ConnectionFailed(f"the connection to {server} failed: {error}")
    failure.__cause__ = error
    return failure


def refusal(response: httpx.Response) -> APIError:
    """The error in an answer, in any of the server's formats."""
    try:
        body = response.json()
    except ValueError:
        body = None
    return error_of(body, response.status_code, response.headers, response.text)


def error_of(body: Any, status: int, headers: Mapping[str, str], text: str = "") -> APIError:
    def object_in(value: Any) -> dict[str, Any]:
        return value if isinstance(value, dict) else {}

    fields = object_in(body)
    inner, data = object_in(fields.get("error")), object_in(fields.get("data"))

    def first(*values: Any) -> str | None:
        return next((value for value in values if isinstance(value, str) and value), None)

    message = first(
        fields.get("detail"), fields.get("message"), inner.get("message"), fields.get("error"), fields.get("title")
    )
    if isinstance(fields.get("detail"), list):
        problems = [
            f"{'.'.join(map(str, one.get('loc', [])))}: {one.get('msg')}" for one in fields["detail"] if isinstance(one, dict)
        ]
        message = "; ".join([message or "invalid request", *problems])
    if message is None:
        line = text.strip().partition("\n")[0][:200] if body is None else ""
        message = f"the server answered {status}" + (f": {line}" if line else "")
    code = first(fields.get("code"), inner.get("code"))
    if code is None or not re.fullmatch(r"[a-z_]+", code):
        code = FILE_ERRORS.get(str(data.get("error_type"))) or code_of_status(status)
    return error_class(code, status)(
        message,
        code=code,
        status=status,
        hint=first(fields.get("hint"), inner.get("hint")),
        request_id=headers.get("x-request-id"),
        retry_after=seconds(headers.get("retry-after")),
        body=body,
    )


#: Codes of what a call on files reports.
FILE_ERRORS = {
    "not_found": "not_found",
    "permission_denied": "forbidden",
    "already_exists": "already_exists",
    "no_space_left": "exhausted",
    "timed_out": "timeout",
    "io_error": "sandbox_failed",
}


def seconds(text: str | None) -> float | None:
    """The value of `Retry-After`: a number of seconds, or a date."""
    if text is None:
        return None
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def content(response: httpx.Response) -> Any:
    """The value of an answer: of an envelope its data, of other JSON all of it, otherwise the bytes."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip()
    if not response.content:
        return None
    if kind != "application/json" and not kind.endswith("+json"):
        return response.content
    try:
        body = response.json()
    except ValueError as error:
        raise ConnectionFailed(f"the answer of {response.request.url} is not JSON") from error
    if isinstance(body, dict) and isinstance(body.get("success"), bool) and "message" in body:
        if not body["success"]:
            # Calls on files report failures with status 200.
            status = response.status_code if response.status_code >= 400 else 400
            raise error_of(body, status, response.headers)
        return body.get("data")
    return body


@dataclass(frozen=True)
class Event:
    """A server-sent event."""

    name: str
    data: Any
    id: str | None


class Events:
    """Parses server-sent events, line by line."""

    def __init__(self) -> None:
        self._name = ""
        self._data: list[str] = []
        self._id: str | None = None

    def feed(self, line: str) -> Event | None:
        """The event that the line completes."""
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                self._name = value
            elif name == "data":
                self._data.append(value)
            elif name == "id":
                self._id = value
            return None
        if not self._data:
            self._name = ""
            return None
        text = "\n".join(self._data)
        try:
            data = json.loads(text)
        except ValueError:
            data = text
        event = Event(self._name or "message", data, self._id)
        self._name, self._data = "", []
        return event
