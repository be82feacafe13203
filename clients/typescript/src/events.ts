/** Server-sent events. */

export interface Event {
  name: string;
  data: unknown;
  id: string | undefined;
}

/** Parses a stream of events. Ends with the stream. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<Event, void, undefined> {
  let name = "";
  let data: string[] = [];
  let id: string | undefined;
  for await (const line of readLines(body)) {
    if (line !== "") {
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "event") name = value;
      else if (field === "data") data.push(value);
      else if (field === "id") id = value;
    } else {
      if (data.length > 0) yield { name: name || "message", data: json(data.join("\n")), id };
      name = "";
      data = [];
    }
  }
}

async function* readLines(body: ReadableStream<Uint8Array>): AsyncGenerator<string, void, undefined> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) yield line.replace(/\r$/, "");
    }
  } finally {
    // The reader stopped before the end, or the connection broke.
    reader.cancel().catch(() => undefined);
  }
}

function json(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}
