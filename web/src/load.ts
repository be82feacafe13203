// The use of processors and memory, from measurements that are some seconds apart.

/** `GET /api/v2/usage/live`. */
export interface LiveUsage {
  sandboxes: Measured[];
  left_out: number;
}

export interface Measured {
  id: string;
  usage: { memory_bytes: number; cpu_nanoseconds: number; pids: number; disk_bytes: number | null; limits: Limits };
}

export interface Limits {
  memory_bytes: number;
  cpu_millis: number;
  pids: number;
  disk_bytes: number;
}

export interface Load {
  /** Milliseconds of the page's clock. */
  at: number;
  /** Cores in use since the measurement before; null for the first. */
  cores: number | null;
  memory_bytes: number;
  disk_bytes: number | null;
  pids: number;
  limits: Limits;
}

export class Loads {
  private readonly last = new Map<string, { at: number; nanoseconds: number }>();
  private loads = new Map<string, Load>();

  /** Takes the measurements of all sandboxes at a time. */
  take(all: readonly Measured[], now: number): void {
    const loads = new Map<string, Load>();
    for (const { id, usage } of all) loads.set(id, { at: now, cores: this.cores(id, usage.cpu_nanoseconds, now), ...usage });
    for (const id of this.last.keys()) if (!loads.has(id)) this.last.delete(id);
    this.loads = loads;
  }

  get(id: string): Load | undefined {
    return this.loads.get(id);
  }

  private cores(id: string, nanoseconds: number, now: number): number | null {
    const before = this.last.get(id);
    this.last.set(id, { at: now, nanoseconds });
    if (!before || now <= before.at) return null;
    // The counter starts again with the sandbox's processes.
    return Math.max(0, nanoseconds - before.nanoseconds) / ((now - before.at) * 1e6);
  }
}
