// The client against a server that refuses, breaks off, and comes back. `tests/operation/test_client_packages.py` has the real
// server.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:net";
import { test } from "node:test";

import * as arenite from "../dist/index.js";
import { answer, events, serve } from "./scripted_server.mjs";

const NOW = "2026-01-01T00:00:00Z";
const INFO = {
  id: "sabcdefghijk", name: "demo", state: "running", spec: { image: "base" }, isolation: [], tier: "namespace", origin: "api",
  created_at: NOW, last_used_at: NOW, state_since: NOW, stages: [], urls: { path: "/sandbox/demo/", host: "x" },
};
const CUT = answer(200, { a: 1 }).slice(0, -3);

/** A client of a server with these answers. */
async function connect(t, ...answers) {
  const server = await serve(...answers);
  t.after(server.close);
  const client = new arenite.Client({ baseUrl: server.url, retries: 2 });
  return { client, requests: server.requests };
}

const ERRORS = [
  [404, { code: "not_found", message: "no x", hint: "list them" }, "NotFound", "list them"],
  [404, { type: "about:blank", title: "Not found", status: 404, detail: "no x", code: "not_found" }, "NotFound", undefined],
  [403, { code: "quota_exceeded", detail: "no x", quota: "sandboxes" }, "QuotaExceeded", undefined],
  [409, { code: "already_exists", message: "no x" }, "AlreadyExists", undefined],
  [409, { code: "a_newer_code", message: "no x" }, "Conflict", undefined],
  [404, { success: false, message: "no x", data: null, hint: "list them" }, "NotFound", "list them"],
  [200, { success: false, message: "no x", data: { error_type: "permission_denied" } }, "Forbidden", undefined],
  [400, { code: "400", error: "no x" }, "InvalidRequest", undefined],
  [504, { error: { code: "timeout", message: "no x" } }, "ServerTimedOut", undefined],
  [422, { message: "no x", detail: [{ loc: ["body", "y"], msg: "Field required" }] }, "InvalidRequest", undefined],
];

for (const [status, body, kind, hint] of ERRORS) {
  test(`${status} with ${JSON.stringify(body)} is ${kind}`, async (t) => {
    const { client } = await connect(t, answer(status, body, { "x-request-id": "r1" }));
    const error = await client.request("POST", "/x").then(assert.fail, (error) => error);
    assert.equal(error.name, kind);
    assert.equal(error.constructor, arenite[kind]);
    assert.match(error.message, /no x/);
    assert.deepEqual([error.hint, error.requestId, error.body], [hint, "r1", body]);
    if (status === 422) assert.match(error.message, /no x; body\.y: Field required/);
  });
}

test("answers that are not JSON", async (t) => {
  const { client } = await connect(t, "HTTP/1.1 502 X\r\ncontent-length: 5\r\n\r\n<html");
  await assert.rejects(client.request("POST", "/x"), { name: "SandboxFailed", message: "the server answered 502: <html" });
});

test("a wrong key is refused at once", async (t) => {
  const server = await serve(answer(401, { code: "unauthorized", message: "Unauthorized" }));
  t.after(server.close);
  const client = new arenite.Client({ baseUrl: server.url, apiKey: "arn_wrong" });
  await assert.rejects(client.info(), arenite.Unauthorized);
  assert.deepEqual(server.requests.map(({ headers }) => headers["x-api-key"]), ["arn_wrong"]);
});

test("a server that is gone", async () => {
  const server = await serve(answer(200, {}));
  server.close();
  const client = new arenite.Client({ baseUrl: server.url, retries: 0 });
  await assert.rejects(client.request("POST", "/x"), { name: "ConnectionFailed", message: /no server answers at .*ARENITE_SERVER/ });
});

test("a slow server", async (t) => {
  const silent = createServer().listen(0, "127.0.0.1");
  await once(silent, "listening");
  t.after(() => silent.close());
  silent.on("connection", (socket) => t.after(() => socket.destroy()));
  const baseUrl = `http://127.0.0.1:${silent.address().port}`;
  const client = new arenite.Client({ baseUrl, timeoutMs: 100 });
  await assert.rejects(client.request("POST", "/x"), arenite.RequestTimedOut);
  const abort = new AbortController();
  setTimeout(() => abort.abort(new Error("enough")), 20);
  await assert.rejects(client.request("GET", "/x", { signal: abort.signal }), /enough/);
});

for (const [what, first] of [["503", answer(503)], ["429", answer(429, undefined, { "retry-after": 0 })], ["a cut answer", CUT], ["no answer", ""]]) {
  test(`after ${what}, reads are repeated and writes are not`, async (t) => {
    const reads = await connect(t, first, answer(200, { a: 1 }));
    assert.deepEqual(await reads.client.request("GET", "/x"), { a: 1 });
    assert.equal(reads.requests.length, 2);
    const writes = await connect(t, first, answer(200, {}));
    await assert.rejects(writes.client.request("POST", "/x", { json: {} }), arenite.AreniteError);
    assert.equal(writes.requests.length, 1);
  });

  test(`after ${what}, a create is repeated with its key`, async (t) => {
    const { client, requests } = await connect(t, first, answer(201, INFO));
    const sandbox = await client.sandboxes.create({ image: "base" });
    assert.equal(sandbox.name, "demo");
    const keys = requests.map(({ headers }) => headers["idempotency-key"]);
    assert.equal(keys.length, 2);
    assert.ok(keys[0] && keys[0] === keys[1]);
    await client.sandboxes.create();
    assert.notEqual(requests[2].headers["idempotency-key"], keys[0]);
  });
}

test("repetitions have an end", async (t) => {
  const { client, requests } = await connect(t, answer(503, { code: "internal", message: "the store is away" }));
  await assert.rejects(client.request("GET", "/x"), { name: "ServerFailed", message: "the store is away" });
  assert.equal(requests.length, 3);
});

test("a pause that is too long is not waited for", async (t) => {
  const { client, requests } = await connect(t, answer(429, { code: "exhausted", message: "slow down" }, { "retry-after": 3600 }));
  await assert.rejects(client.request("GET", "/x"), { name: "Exhausted", retryAfterMs: 3_600_000 });
  assert.equal(requests.length, 1);
});

const step = (number) => `event: step\nid: ${number}\ndata: ${JSON.stringify({ step: number, action: "é" })}\n\n`;

async function follow(client) {
  const steps = [];
  for await (const { step } of client.trajectories.get("demo").steps({ follow: true })) steps.push(step);
  return steps;
}

test("a broken stream continues", async (t) => {
  const stopping = `${events(step(2), "event: server_stopping\ndata: {}\n\n")}0\r\n\r\n`;
  const ended = `${events(": alive\n\n", step(3), "event: end\ndata: {}\n\n")}0\r\n\r\n`;
  const { client, requests } = await connect(t, events(step(1), step(2).slice(0, 20)), stopping, ended);
  assert.deepEqual(await follow(client), [1, 2, 3]);
  assert.deepEqual(requests.map(({ headers }) => headers["last-event-id"]), [undefined, "1", "2"]);
});

test("a stream that breaks each time fails", async (t) => {
  const { client, requests } = await connect(t, events(step(1)), events());
  await assert.rejects(follow(client), arenite.ConnectionFailed);
  assert.equal(requests.length, 3);
});

test("lists are read page by page", async (t) => {
  const page = (name, next_cursor) => answer(200, { sandboxes: [{ ...INFO, name }], next_cursor });
  const { client, requests } = await connect(t, page("a", "c/1"), page("b", null));
  const names = [];
  for await (const { name } of client.sandboxes.list({ state: "running" })) names.push(name);
  assert.deepEqual(names, ["a", "b"]);
  assert.match(requests[1].line, /\?limit=100&state=running&cursor=c%2F1 /);
});

test("several are created at once", async (t) => {
  const errors = [{ index: 1, code: "exhausted", message: "full" }];
  const { client, requests } = await connect(t, CUT, answer(207, { requested: 2, sandboxes: [INFO], errors }));
  const batch = await client.sandboxes.createMany(2, { image: "base" }, { atLeast: 1 });
  assert.deepEqual([batch.sandboxes.map(({ name }) => name), batch.errors], [["demo"], errors]);
  assert.deepEqual(requests.map(({ body }) => JSON.parse(body)), Array(2).fill({ image: "base", count: 2, min: 1 }));
  assert.equal(requests[0].headers["idempotency-key"], requests[1].headers["idempotency-key"]);
});

test("a group is named in its creates", async (t) => {
  const { client, requests } = await connect(t, answer(200, { name: "a b" }), answer(201, INFO));
  const group = await client.groups.get("a b");
  await group.create({ image: "base", group: "other" });
  assert.equal(requests[0].line, "GET /api/v2/groups/a%20b HTTP/1.1");
  assert.deepEqual(JSON.parse(requests[1].body), { image: "base", group: "a b" });
});

test("files of a volume are bytes in both directions", async (t) => {
  const entry = { name: "f", kind: "file", size_bytes: 5 };
  const pages = [answer(200, { files: [entry], next_cursor: "c" }), answer(200, { files: [entry], next_cursor: null })];
  const { client, requests } = await connect(t, answer(200, { name: "v" }), answer(200, entry), ...pages, answer(201, { name: "copy" }));
  const volume = await client.volumes.get("v");
  assert.equal((await volume.write("a b/f", "hello")).size_bytes, 5);
  assert.equal(requests[1].line, "PUT /api/v2/volumes/v/content?path=a+b%2Ff&create_parents=true HTTP/1.1");
  assert.equal(String(requests[1].body), "hello");
  const names = [];
  for await (const { name } of volume.files("a b")) names.push(name);
  assert.deepEqual(names, ["f", "f"]);
  assert.match(requests[3].line, /files\?path=a\+b&cursor=c /);
  assert.equal((await volume.copy("copy")).name, "copy");
  assert.equal(requests[4].line, "POST /api/v2/volumes/v/copy HTTP/1.1");
});

test("snapshots have files and are files", async (t) => {
  const page = answer(200, { files: [{ name: "f", kind: "file", size_bytes: 5 }], next_cursor: null });
  const { client, requests } = await connect(t, page, answer(200, { a: 1 }), answer(200, { an: "archive" }), answer(201, { name: "s" }));
  const names = [];
  for await (const { name } of client.snapshots.files("s", "a b")) names.push(name);
  assert.deepEqual(names, ["f"]);
  assert.deepEqual(JSON.parse(await client.snapshots.read("s", "a b/f")), { a: 1 });
  assert.equal(requests[1].line, "GET /api/v2/snapshots/s/content?path=a+b%2Ff HTTP/1.1");
  const archive = await new Response(await client.snapshots.export("s")).blob();
  assert.equal((await client.snapshots.import(archive, { name: "s" })).name, "s");
  assert.equal(requests[3].line, "POST /api/v2/snapshots/import?name=s HTTP/1.1");
  assert.deepEqual(JSON.parse(requests[3].body), { an: "archive" });
});

test("events are read to their end, and gaps are reported", async (t) => {
  const event = { id: "1-1", type: "sandbox.died", sandbox: { name: "demo" } };
  const last = answer(200, { events: [], next_after: "1-1", gap: false });
  const stream = `${events('event: gap\ndata: {"message": "missing"}\n\n', `event: sandbox.died\nid: 1-1\ndata: ${JSON.stringify(event)}\n\n`)}0\r\n\r\n`;
  const { client, requests } = await connect(t, answer(200, { events: [event], next_after: "1-1", gap: true }), last, stream);
  for (const options of [{ types: ["sandbox.died"], labels: { a: "b" } }, { follow: true }]) {
    const found = [];
    for await (const one of client.listEvents(options)) found.push(one);
    assert.deepEqual(found, [{ type: "gap" }, event]);
  }
  assert.match(requests[1].line, /\?type=sandbox.died&label=a%3Db&after=1-1 /);
});

test("webhooks", async (t) => {
  const { client, requests } = await connect(t, answer(200, { deliveries: [{ number: 2 }], next_cursor: "c" }), answer(200, { deliveries: [{ number: 1 }] }));
  const numbers = [];
  for await (const { number } of client.webhooks.deliveries("w/1", { state: "dead" })) numbers.push(number);
  assert.deepEqual(numbers, [2, 1]);
  assert.match(requests[1].line, /webhooks\/w%2F1\/deliveries\?state=dead&cursor=c /);
});

test("model routes", async (t) => {
  const { client, requests } = await connect(t, answer(200, { name: "main" }), answer(200, { models: [{ name: "main" }] }));
  await client.models.set("main", { upstream: "https://x/v1" });
  for await (const { name } of client.models.list()) assert.equal(name, "main");
  assert.match(requests[0].line, /^PUT \/api\/v2\/models\/main /);
  assert.equal(requests.length, 2);
});

test("any list is read page by page", async (t) => {
  const groups = (name, next_cursor) => answer(200, { groups: [{ name }], next_cursor });
  const recorded = (trajectory, next_cursor) => answer(200, { trajectories: [{ trajectory }], next_cursor });
  const { client, requests } = await connect(t, groups("a", "c"), groups("b", null), recorded("s1", "d"), recorded("s2", null));
  const names = [];
  for await (const { name } of client.pages("/api/v2/groups", "groups", { limit: 1 })) names.push(name);
  assert.deepEqual(names, ["a", "b"]);
  const summaries = await client.trajectories.list({ sandbox: "x" });
  assert.deepEqual(summaries.map((one) => one.trajectory), ["s1", "s2"]);
  assert.match(requests[1].line, /groups\?limit=1&cursor=c /);
  assert.match(requests[3].line, /trajectories\?sandbox=x&cursor=d /);
});

test("names are one segment", async (t) => {
  const { client, requests } = await connect(t, answer(404, { code: "not_found", message: "no" }));
  await assert.rejects(client.sandboxes.get("../../x?y=1"), arenite.NotFound);
  assert.equal(requests[0].line, "GET /api/v2/sandboxes/..%2F..%2Fx%3Fy%3D1 HTTP/1.1");
});

test("addresses that can't work", () => {
  for (const baseUrl of ["127.0.0.1:8080", "ftp://x", "http://u@x", "http://x/?q", "http://a b"]) {
    assert.throws(() => new arenite.Client({ baseUrl }), /invalid address/);
  }
});
