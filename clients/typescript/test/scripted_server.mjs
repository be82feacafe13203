// A server of raw answers, one after the other, so that a test decides where a connection breaks.

import { createServer } from "node:net";

/** A complete answer with JSON. */
export function answer(status, body, headers = {}) {
  const content = body === undefined ? "" : JSON.stringify(body);
  const fields = { "content-length": Buffer.byteLength(content), "content-type": "application/json", ...headers };
  const lines = Object.entries(fields).map(([name, value]) => `${name}: ${value}\r\n`);
  return `HTTP/1.1 ${status} X\r\n${lines.join("")}connection: close\r\n\r\n${content}`;
}

/** The start of a stream of events. Without an end, so the end of the connection breaks it off. */
export function events(...texts) {
  const chunks = texts.map((text) => `${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`);
  return `HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n${chunks.join("")}`;
}

/** Each request gets the next answer, and its connection is closed after it. The last answer stays. */
export async function serve(...answers) {
  const requests = [];
  const server = createServer((socket) => {
    let text = "";
    socket.on("error", () => undefined);
    socket.on("data", (data) => {
      text += data;
      const [head, body] = text.split(/\r\n\r\n(.*)/s);
      const length = Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0);
      if (body === undefined || body.length < length) return;
      const [line, ...fields] = head.split("\r\n");
      requests.push({ line, headers: Object.fromEntries(fields.map((field) => field.toLowerCase().split(": "))), body });
      socket.end(answers.length > 1 ? answers.shift() : answers[0]);
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}`, requests, close: () => server.close() };
}
