"""An agent with any model that is served as OpenAI serves its own: chat completions with tools.

    export OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_MODEL=my-model OPENAI_API_KEY=...
    arenite rollout run tasks.jsonl --agent "python3 $PWD/examples/agents/openai_compatible.py" --workers 8 --out runs/model

The model gets the server's tools. Every call of a turn is made and answered; the first turn without calls is the final answer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NoReturn

# A model may be behind a proxy. Arenite's server is on this host or near it, where a proxy would not know it.
BY_PROXY = urllib.request.build_opener()
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# "Something I need failed for now": the runner tries again, and doesn't count it against the agent.
EX_TEMPFAIL = 75
SYSTEM = "You solve the task with the tools you have. When you know the answer, write it, and nothing else."


def give_up(why: str) -> NoReturn:
    print(why, file=sys.stderr)
    sys.exit(EX_TEMPFAIL)


def fetch(
    way: urllib.request.OpenerDirector, url: str, headers: dict[str, str], body: dict[str, Any] | None, seconds: float
) -> tuple[int, Any, str | None]:
    """Status, JSON and the header Retry-After. Without an answer the status is 0, and in place of the JSON is the reason."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with way.open(request, timeout=seconds) as response:
            return response.status, json.load(response), None
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            answer = json.loads(text)
        except ValueError:
            answer = text
        return error.code, answer, error.headers.get("Retry-After")
    except (OSError, ValueError) as error:
        return 0, str(error), None


class Model:
    def __init__(self, seconds: float) -> None:
        self.url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1").rstrip("/") + "/chat/completions"
        self.name = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
        key = os.environ.get("OPENAI_API_KEY")
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.seconds = seconds

    def reply(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.name, "messages": messages}
        if tools:
            body["tools"] = tools
        why = ""
        for attempt in range(5):
            status, answer, retry_after = fetch(BY_PROXY, self.url, self.headers, body, self.seconds)
            if status == 200:
                try:
                    return answer["choices"][0]["message"]
                except (KeyError, IndexError, TypeError):
                    give_up(f"the model's answer is not understood: {str(answer)[:500]}")
            why = f"the model answered {status}: {str(answer)[:500]}"
            if status == 400:
                # What was asked is too long, most of the time; another attempt would ask the same.
                raise SystemExit(why)
            if status not in (0, 408, 429) and status < 500:
                break
            wait = float(retry_after) if retry_after and retry_after.replace(".", "", 1).isdigit() else 2.0**attempt
            time.sleep(min(wait, 60))
        give_up(why)


class Tools:
    """The server's tools, as the model sees and calls them."""

    def __init__(self, wanted: str, kwargs: dict[str, Any], longest: int) -> None:
        self.base = os.environ["ARENITE_SERVER"].rstrip("/")
        self.worker = os.environ["ARENITE_WORKER_ID"]
        self.task = os.environ["ARENITE_TASK_ID"]
        key = os.environ.get("ARENITE_API_KEY")
        self.headers = {"X-API-Key": key} if key else {}
        self.kwargs = kwargs
        self.longest = longest
        kinds = [kind for kind in wanted.split(",") if kind]
        tools = self.get("/api/v1/tools?format=openai")["tools"]
        self.kinds = {plain(tool["full_name"]): tool for tool in self.get("/api/v1/tools")["tools"]}
        self.list = [tool for tool in tools if not kinds or re.split(r"[^A-Za-z0-9]", tool["function"]["name"])[0] in kinds]
        self.sessions: set[str] = set()

    def get(self, path: str) -> dict[str, Any]:
        status, answer, _ = fetch(DIRECT, self.base + path, self.headers, None, 60)
        if status != 200:
            give_up(f"{path}: the server answered {status}: {str(answer)[:500]}")
        return answer

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The server's envelope, also of a tool that failed. Ends the agent when there is none."""
        body = {"worker_id": self.worker, "task_id": self.task, **body}
        status, answer, _ = fetch(DIRECT, self.base + path, self.headers, body, 600)
        if status == 429 or not isinstance(answer, dict) or "code" not in answer:
            give_up(f"{path}: the server answered {status}: {str(answer)[:500]}")
        return answer

    def call(self, name: str, arguments: str) -> str:
        """What a call comes to, as text for the model: it should read of its mistakes too."""
        try:
            params = json.loads(arguments or "{}")
        except ValueError as error:
            return f"Error: the arguments are not JSON: {error}"
        if not isinstance(params, dict):
            return "Error: the arguments are not a JSON object"
        known = self.kinds.get(plain(name), {})
        kind = known.get("resource_type")
        if kind and not known.get("stateless") and kind not in self.sessions:
            answer = self.post("/api/v1/session/create", {"resource_type": kind, "session_config": {}})
            if answer["code"] != 0:
                give_up(f"no session of {kind}: {answer['message']}")
            self.sessions.add(kind)
        action = known.get("full_name", name)
        answer = self.post("/api/v1/execute", {"action": action, "params": {**params, **self.kwargs}, "timeout": None})
        data = answer.get("data")
        if answer["code"] != 0:
            return self.cut(f"Error: {answer['message']}" + (f"\n{json.dumps(data, ensure_ascii=False)}" if data else ""))
        if isinstance(data, dict) and isinstance(data.get("result"), str):
            return self.cut(data["result"])
        return self.cut(data if isinstance(data, str) else json.dumps(data, ensure_ascii=False))

    def cut(self, text: str) -> str:
        """Beginning and end of a long text: errors stand at the end, headings at the beginning."""
        over = len(text) - self.longest
        if over <= 0:
            return text
        half = self.longest // 2
        return f"{text[:half]}\n[… {over} characters left out …]\n{text[-half:]}"


def plain(name: str) -> str:
    """A tool's name without its separators, which differ between the server and what models may call."""
    return re.sub(r"[^a-z0-9]", "-", name.lower())


def solve(task: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    model = Model(options.model_timeout)
    tools = Tools(options.tools, task.get("kwargs") or {}, options.max_result)
    question = task.get("question") or task.get("content") or ""
    messages: list[dict[str, Any]] = [{"role": "system", "content": options.system}, {"role": "user", "content": str(question)}]
    for turn in range(1, options.max_turns + 1):
        message = model.reply(messages, tools.list)
        calls = message.get("tool_calls") or []
        kept: dict[str, Any] = {"role": "assistant", "content": message.get("content")}
        if calls:
            kept["tool_calls"] = calls
        messages.append(kept)
        if not calls:
            return finished(task, message.get("content") or "", messages, turn, options.check)
        for call in calls:
            function = call["function"]
            content = tools.call(function["name"], function.get("arguments") or "")
            messages.append({"role": "tool", "tool_call_id": call["id"], "name": function["name"], "content": content})
    error = f"no answer within {options.max_turns} turns"
    return {"success": False, "error": error, "final_answer": "", "messages": messages, "total_turns": options.max_turns}


def finished(task: dict[str, Any], answer: str, messages: list[dict[str, Any]], turns: int, check: str) -> dict[str, Any]:
    result: dict[str, Any] = {"final_answer": answer, "messages": messages, "total_turns": turns}
    expected = task.get("answer")
    if check != "none" and expected is not None:
        given, wanted = (" ".join(str(text).lower().split()) for text in (answer, expected))
        result["success"] = given == wanted if check == "exact" else wanted in given
        if not result["success"]:
            result["error"] = f"the answer should be {expected!r}" if check == "exact" else f"the answer lacks {expected!r}"
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-turns", type=int, default=20, help="replies of the model before giving up (20)")
    parser.add_argument("--max-result", type=int, default=8000, help="characters of a tool's result that the model gets (8000)")
    parser.add_argument("--tools", default="", help="kinds of tools to offer, such as bash,code; all of them if not given")
    parser.add_argument("--check", choices=["none", "contains", "exact"], default="none", help="compare with the task's answer")
    parser.add_argument("--system", default=SYSTEM, help="the system prompt")
    parser.add_argument("--model-timeout", type=float, default=300, help="seconds for a reply of the model (300)")
    options = parser.parse_args()
    result = solve(json.load(sys.stdin), options)
    Path(os.environ["ARENITE_RESULT"]).write_text(json.dumps(result, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
