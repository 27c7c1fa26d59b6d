/**
 * A remote worker for Rota, in one file and with nothing but what Node 20 has.
 *
 *     import { Worker } from "./rota-worker.js";
 *
 *     const worker = new Worker({ server: "http://localhost:7070", name: "mailer" });
 *     worker.handler("mail", async (call) => {
 *       call.log("sending");
 *       return { sent: (call.payload as { to: string }).to };
 *     });
 *     process.on("SIGTERM", () => worker.stop());
 *     await worker.run(); // until stop(), then drains
 *
 * A handler that takes long should listen to `call.signal` (an AbortSignal) and
 * come to an end soon after it is aborted. What it returns after its run was lost
 * counts for nothing.
 *
 * The protocol is told in docs/workers.md. Only syntax that type stripping can
 * erase is used, so Node 22.18 and later runs this file as it is.
 */

export interface Lease {
  run: string;
  fence: number;
}

export interface Attempt extends Lease {
  attempt: number;
  job: { id: number; name: string };
  version: number;
  step: string;
  kind: string;
  handler?: string;
  payload: unknown;
  spec?: unknown;
  labels?: Record<string, string>;
  source: string;
  planned_at?: string;
  timeout_ms?: number;
  deadline_at?: string;
  /** W3C trace context, for the requests that the handler makes. */
  traceparent?: string;
  cancelable: boolean;
  idempotency_key: string;
  alone?: boolean;
}

export interface AttemptError {
  kind?: string;
  message: string;
  status?: number;
  retry_after_ms?: number;
  retry?: boolean;
}

type Outcome =
  | { outcome: "succeeded"; output?: unknown }
  | { outcome: "failed"; error: AttemptError }
  | { outcome: "cancelled" }
  | { outcome: "handed_back" };

type Finished = Lease & Outcome;

interface LogPiece extends Lease {
  seq: number;
  lines: { stream: string; text: string }[];
}

interface Word extends Lease {
  percent?: number;
  phase?: string;
  message?: string;
}

interface Answer {
  attempts: Attempt[];
  reports: (Lease & { status: "applied" | "stale" | "pending"; code: number })[];
  cancel: (Lease & { grace_ms: number })[];
  lost: Lease[];
  drain: boolean;
  lease_ms: number;
  retry_after_ms?: number;
}

/** Why a handler failed, and what it advises about trying again. */
export class HandlerError extends Error {
  readonly advice: Omit<AttemptError, "message">;

  constructor(message: string, advice: Omit<AttemptError, "message"> = {}) {
    super(message);
    this.advice = advice;
  }
}

/** The server refused an exchange for good: a bad token, say. */
export class Refused extends Error {}

/** The server refused an exchange for what it reported. */
class RefusedReports extends Error {}

export type Handler = (call: Call) => unknown | Promise<unknown>;

export interface Options {
  server: string;
  name: string;
  token?: string;
  /** Attempts under way at once; 10 if not given. */
  slots?: number;
  queues?: string[];
  traits?: string[];
  version?: string;
  /** How long attempts may take to end when the worker stops. */
  drainLimitMs?: number;
  id?: string;
}

const WAIT_MS = 25_000;
const ANSWER_MS = 40_000;
const LAST_WORDS_MS = 5_000;
/** What the server takes, in bytes: the body of an exchange, the output of an attempt (as
 * JSON), the message of an error, a line of a log, a text of progress. */
const EXCHANGE_BYTES = 1024 * 1024;
const OUTPUT_BYTES = 64 * 1024;
const MESSAGE_BYTES = 8 * 1024;
const LINE_BYTES = 16 * 1024;
const PROGRESS_BYTES = 1024;
/** What an exchange needs beside its reports: its own fields, and so much for each lease. */
const FIELDS_BYTES = 4 * 1024;
const LEASE_BYTES = 80;
const LOG_BYTES = 4 * 1024 * 1024;
const PIECE_BYTES = 32 * 1024;
const FINISHED_MAX = 2_000;
const WORDS_MAX = 1_000;
const OVER_MAX = 2_000;

const keyOf = (lease: Lease): string => `${lease.run}/${lease.fence}`;
const bare = ({ run, fence }: Lease): Lease => ({ run, fence });

/** One attempt, as its handler sees it. */
export class Call {
  readonly attempt: Attempt;
  readonly payload: unknown;
  /** Aborted when the run was cancelled, was lost, has timed out, or the worker goes. */
  readonly signal: AbortSignal;
  /** @internal */ readonly stop: AbortController = new AbortController();
  /** @internal */ seq = 0;
  /** @internal */ timers: ReturnType<typeof setTimeout>[] = [];
  readonly #worker: Worker;

  constructor(worker: Worker, attempt: Attempt) {
    this.#worker = worker;
    this.attempt = attempt;
    this.payload = attempt.payload;
    this.signal = this.stop.signal;
  }

  /** Adds a line to the attempt's log. */
  log(text: string, stream: "stdout" | "stderr" = "stdout"): void {
    this.#worker.takeLog(this, stream, text);
  }

  /** Says how far it has come; only the latest word counts. */
  progress(word: { percent?: number; phase?: string; message?: string }): void {
    this.#worker.takeWord(this, { ...bare(this.attempt), ...word });
  }
}

interface Say {
  request: Record<string, unknown>;
  logs: number;
  words: Word[];
  reports: number;
}

/**
 * Fetches attempts, executes them and reports what became of them.
 *
 * One exchange waits for work. As soon as there is something to say, a second one
 * says it and waits in its place; the server then answers the first at once.
 */
export class Worker {
  readonly id: string;
  readonly #options: Options;
  readonly #slots: number;
  readonly #handlers = new Map<string, Handler>();
  readonly #running = new Map<string, Call>();
  /** The last ones that are over, oldest first. */
  readonly #over = new Set<string>();
  #finished: { report: Finished; behind: number; substitute?: boolean }[] = [];
  #pieces: { report: LogPiece; bytes: number; sent: boolean }[] = [];
  #piecesGone = 0;
  #logBytes = 0;
  readonly #words = new Map<string, Word>();
  #flights = 0;
  #saying = false;
  #draining = false;
  #saidDraining = false;
  #ended = false;
  #notBefore = 0;
  #failures = 0;
  #refused: Refused | undefined;
  /** The server refused an exchange: reports go one at a time, until the one that it refuses is known. */
  #oneAtATime = false;
  #waiters: (() => void)[] = [];

  constructor(options: Options) {
    this.#options = options;
    this.#slots = options.slots ?? 10;
    this.id = options.id ?? crypto.randomUUID();
  }

  handler(name: string, function_: Handler): this {
    this.#handlers.set(name, function_);
    return this;
  }

  /** Takes no more work, finishes what there is, and makes `run` return. */
  stop(): void {
    this.#draining = true;
    this.#changed();
  }

  /** Works until `stop`, or the server's wish; then drains. */
  async run(): Promise<void> {
    const loops = [this.#exchangeForever(), this.#exchangeForever()];
    await this.#until(() => this.#draining);
    await this.#until(() => this.#running.size === 0 || !!this.#refused, this.#options.drainLimitMs ?? 30_000);
    for (const call of [...this.#running.values()]) this.#end(call, { outcome: "handed_back" });
    await this.#until(() => this.#finished.length === 0 || !!this.#refused, LAST_WORDS_MS);
    this.#ended = true;
    this.#changed();
    if (this.#refused) throw this.#refused;
    await this.#ask({ ...this.#hello(), leaving: true }).catch((error: unknown) => {
      console.warn(`left without having been heard: ${String(error)}`);
    });
    await Promise.all(loops);
  }

  // --- waiting ---------------------------------------------------------------

  #changed(): void {
    const waiters = this.#waiters;
    this.#waiters = [];
    for (const wake of waiters) wake();
  }

  async #until(holds: () => boolean, limitMs = Infinity): Promise<void> {
    const ends = Date.now() + limitMs;
    while (!holds() && Date.now() < ends) await this.#wait(Math.min(ends - Date.now(), 60_000));
  }

  #wait(limitMs: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, Math.max(1, limitMs));
      this.#waiters.push(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  // --- what is in hand -------------------------------------------------------

  #begin(attempt: Attempt): void {
    const key = keyOf(attempt);
    // A server that takes its answer for lost hands an attempt over again.
    if (this.#running.has(key) || this.#over.has(key)) return;
    const call = new Call(this, attempt);
    this.#running.set(key, call);
    if (this.#draining) return this.#end(call, { outcome: "handed_back" });
    if (attempt.timeout_ms !== undefined) {
      const error = { kind: "timeout", message: "it did not end within its time" };
      this.#after(call, attempt.timeout_ms, { outcome: "failed", error });
    }
    void this.#execute(call);
  }

  /** Not waiting longer than this for the end of an attempt. */
  #after(call: Call, ms: number, outcome: Outcome): void {
    // A timer cannot wait for longer than 24 days.
    if (ms < 2 ** 31) call.timers.push(setTimeout(() => this.#end(call, outcome), ms));
  }

  async #execute(call: Call): Promise<void> {
    const function_ = this.#handlers.get(call.attempt.handler ?? "");
    if (!function_) return this.#end(call, { outcome: "handed_back" });
    try {
      this.#end(call, succeeded(await function_(call)));
    } catch (error) {
      const advice = error instanceof HandlerError ? error.advice : {};
      const message = cut(error instanceof Error ? error.message : String(error), MESSAGE_BYTES);
      this.#end(call, { outcome: "failed", error: { kind: "handler", ...advice, message } });
    }
  }

  /** An attempt is over, or nobody waits for it any more. */
  #end(call: Call, outcome: Outcome | undefined): void {
    const key = keyOf(call.attempt);
    if (this.#running.get(key) !== call) return;
    this.#running.delete(key);
    this.#over.add(key);
    for (const oldest of this.#over) {
      if (this.#over.size <= OVER_MAX) break;
      this.#over.delete(oldest);
    }
    this.#words.delete(key);
    call.timers.forEach(clearTimeout);
    call.stop.abort();
    if (outcome) {
      const report = { ...bare(call.attempt), ...outcome } as Finished;
      this.#finished.push({ report, behind: this.#piecesGone + this.#pieces.length });
    }
    this.#changed();
  }

  /** @internal */
  takeLog(call: Call, stream: string, text: string): void {
    const line = { stream, text: cut(text, LINE_BYTES) };
    const bytes = jsonLength(line) + 1;
    if (!this.#running.has(keyOf(call.attempt)) || this.#logBytes + bytes > LOG_BYTES) return;
    this.#logBytes += bytes;
    const last = this.#pieces[this.#pieces.length - 1];
    if (last && !last.sent && last.bytes < PIECE_BYTES && keyOf(last.report) === keyOf(call.attempt)) {
      last.report.lines.push(line);
      last.bytes += bytes;
    } else {
      const report = { ...bare(call.attempt), seq: call.seq++, lines: [line] };
      const whole = jsonLength(report);
      this.#logBytes += whole - bytes;
      this.#pieces.push({ report, bytes: whole, sent: false });
    }
    this.#changed();
  }

  /** @internal */
  takeWord(call: Call, word: Word): void {
    if (!this.#running.has(keyOf(call.attempt))) return;
    const kept: Word = bare(word);
    if (word.percent !== undefined) kept.percent = Math.max(0, Math.min(100, Math.trunc(word.percent) || 0));
    if (word.phase !== undefined) kept.phase = cut(word.phase, PROGRESS_BYTES);
    if (word.message !== undefined) kept.message = cut(word.message, PROGRESS_BYTES);
    this.#words.set(keyOf(word), kept);
    this.#changed();
  }

  // --- exchanges -------------------------------------------------------------

  #hello(): Record<string, unknown> {
    const { name, queues = [], traits = [], version = "typescript" } = this.#options;
    const handlers = [...this.#handlers.keys()].sort();
    const worker = { id: this.id, name, version, queues, traits, handlers, slots: this.#slots, draining: this.#draining };
    return { worker };
  }

  #say(): Say {
    this.#saidDraining = this.#draining;
    const held = this.#running.size + this.#finished.length;
    let room = EXCHANGE_BYTES - FIELDS_BYTES - jsonLength(this.#hello()) - held * LEASE_BYTES;
    let most = this.#oneAtATime ? 1 : Infinity;
    const fits = (bytes: number): boolean => {
      if (most === 0 || bytes >= room) return false;
      room -= bytes + 1;
      most -= 1;
      return true;
    };
    const logs: LogPiece[] = [];
    for (const piece of this.#pieces.slice(0, WORDS_MAX)) {
      if (!fits(piece.bytes)) break;
      piece.sent = true;
      logs.push(piece.report);
    }
    const finished: Finished[] = [];
    for (const { report, behind } of this.#finished.slice(0, FINISHED_MAX)) {
      if (behind > this.#piecesGone + logs.length || !fits(jsonLength(report))) break;
      finished.push(report);
    }
    const words: Word[] = [];
    for (const word of [...this.#words.values()].slice(0, WORDS_MAX)) {
      if (!fits(jsonLength(word))) break;
      words.push(word);
    }
    const calls = [...this.#running.values()];
    const unsaid = this.#finished.slice(finished.length).map(({ report }) => bare(report));
    const leases = [...calls.map((call) => bare(call.attempt)), ...unsaid];
    const alone = calls.some((call) => call.attempt.alone);
    const free = this.#draining || alone ? 0 : Math.max(0, this.#slots - calls.length);
    const wait_ms = this.#draining && finished.length > 0 ? 0 : WAIT_MS;
    const request = { ...this.#hello(), free, wait_ms, leases, finished, logs, progress: words };
    return { request, logs: logs.length, words, reports: finished.length + logs.length + words.length };
  }

  #dropPieces(count: number): void {
    for (const piece of this.#pieces.splice(0, count)) this.#logBytes -= piece.bytes;
    this.#piecesGone += count;
  }

  /**
   * The server refused an exchange; false where that is not because of its reports.
   *
   * Refused once more it would be refused for ever, and with it all other reports. So they
   * go one at a time until the one that is refused is known, and that one is given up: of
   * an end it is reported that its report was refused.
   */
  #wasRefused(say: Say, why: string): boolean {
    this.#oneAtATime = say.reports > 1;
    if (say.reports !== 1) return say.reports > 1;
    console.error(`the server refused a report, which is given up: ${why}`);
    const [word] = say.words;
    if (say.logs > 0) {
      this.#dropPieces(1);
    } else if (word) {
      this.#words.delete(keyOf(word));
    } else {
      const refused = this.#finished.shift();
      // One that stands in for another is not replaced again: its lease runs out.
      if (refused && !refused.substitute) {
        const message = cut(`the server refused the report of its end: ${why}`, MESSAGE_BYTES);
        const report: Finished = { ...bare(refused.report), outcome: "failed", error: { message } };
        this.#finished.unshift({ report, behind: refused.behind, substitute: true });
      }
    }
    return true;
  }

  #heard(say: Say, answer: Answer): void {
    for (const attempt of answer.attempts) this.#begin(attempt);
    this.#dropPieces(say.logs);
    for (const word of say.words) {
      if (this.#words.get(keyOf(word)) === word) this.#words.delete(keyOf(word));
    }
    const settled = new Set(answer.reports.filter(({ status }) => status !== "pending").map(keyOf));
    this.#finished = this.#finished.filter(({ report }) => !settled.has(keyOf(report)));
    this.#oneAtATime &&= this.#finished.length + this.#pieces.length + this.#words.size > 0;
    for (const order of answer.cancel) {
      const call = this.#running.get(keyOf(order));
      if (!call || !call.attempt.cancelable || call.signal.aborted) continue;
      call.stop.abort();
      // A handler that does not stop within its grace is not waited for.
      this.#after(call, order.grace_ms, { outcome: "cancelled" });
    }
    for (const lease of answer.lost) {
      const call = this.#running.get(keyOf(lease));
      if (call) this.#end(call, undefined);
    }
    if (answer.drain) this.#draining = true;
    if (answer.retry_after_ms !== undefined) this.#notBefore = Date.now() + answer.retry_after_ms;
  }

  #wants(): boolean {
    const drains = this.#draining && !this.#saidDraining;
    const something = drains || this.#finished.length + this.#pieces.length + this.#words.size > 0;
    return !this.#saying && (this.#flights === 0 || something) && Date.now() >= this.#notBefore;
  }

  async #exchangeForever(): Promise<void> {
    for (;;) {
      while (!this.#wants() && !this.#ended && !this.#refused) {
        const pause = this.#notBefore - Date.now();
        await this.#wait(pause > 0 ? pause : 60_000);
      }
      if (this.#ended || this.#refused) return;
      const say = this.#say();
      this.#flights += 1;
      this.#saying ||= say.reports > 0;
      try {
        const answer = await this.#ask(say.request);
        this.#failures = 0;
        this.#heard(say, answer);
      } catch (error) {
        if (error instanceof RefusedReports && this.#wasRefused(say, error.message)) continue;
        if (error instanceof Refused || error instanceof RefusedReports) {
          this.#refused = new Refused(error.message);
          this.#draining = true;
        } else {
          const pause = Math.min(2_000, 50 * 2 ** Math.min(this.#failures++, 10));
          this.#notBefore = Date.now() + pause;
          console.warn(`an exchange failed (${String(error)}); trying again in ${pause} ms`);
        }
      } finally {
        this.#flights -= 1;
        if (say.reports > 0) this.#saying = false;
        this.#changed();
      }
    }
  }

  async #ask(request: Record<string, unknown>): Promise<Answer> {
    const headers: Record<string, string> = { "content-type": "application/json" };
    if (this.#options.token) headers["authorization"] = `Bearer ${this.#options.token}`;
    const answer = await fetch(`${this.#options.server.replace(/\/+$/, "")}/api/v1/workers/sync`, {
      method: "POST",
      headers,
      body: JSON.stringify(request),
      signal: AbortSignal.timeout(ANSWER_MS),
    });
    if (answer.ok) return (await answer.json()) as Answer;
    const said = `${answer.status} ${(await answer.text()).slice(0, 65_536)}`;
    if (answer.status === 429 || answer.status >= 500) throw new Error(said);
    throw [400, 413, 422].includes(answer.status) ? new RefusedReports(said) : new Refused(said);
  }
}

const encoder = new TextEncoder();
/** Halves of characters, which JSON can write and no server takes. */
const HALVES = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

function jsonLength(value: unknown): number {
  return encoder.encode(JSON.stringify(value)).length;
}

/** The text in at most so many bytes of UTF-8, with a mark where it was cut. */
function cut(text: string, most: number): string {
  const bytes = encoder.encode(text);
  if (bytes.length <= most) return text.replace(HALVES, "\ufffd");
  const mark = " [cut]";
  let end = most - mark.length;
  // Not within a character.
  while (((bytes[end] ?? 0) & 0xc0) === 0x80) end -= 1;
  return new TextDecoder().decode(bytes.subarray(0, end)) + mark;
}

/** What a handler returned, as JSON can hold it; one that is no JSON is an error. */
function succeeded(returned: unknown): Outcome {
  const whole = (_: string, value: unknown): unknown =>
    typeof value === "string" ? value.replace(HALVES, "\ufffd") : value;
  const text = JSON.stringify(returned, whole) as string | undefined;
  if (text === undefined || text === "null") return { outcome: "succeeded" };
  const bytes = encoder.encode(text).length;
  if (bytes <= OUTPUT_BYTES) return { outcome: "succeeded", output: JSON.parse(text) as unknown };
  const message = `its output has ${bytes} bytes; the maximum is ${OUTPUT_BYTES}`;
  return { outcome: "failed", error: { kind: "output_too_large", message, retry: false } };
}
