/** 128 random bits. `crypto.randomUUID` is missing in Node.js 18's global scope and on pages without TLS. */
export function randomId(): string {
  const parts = Array.from({ length: 4 }, () => Math.floor(Math.random() * 2 ** 32).toString(16).padStart(8, "0"));
  return parts.join("");
}
