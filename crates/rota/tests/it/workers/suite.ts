// The suite's worker in TypeScript: node suite.js SERVER NAME DRAIN_SECONDS

import { HandlerError, Worker, type Call } from "./rota-worker.js";
// @ts-expect-error: the types of Node are not at hand
import { appendFileSync, existsSync } from "node:fs";

declare const process: { argv: string[]; pid: number; on(signal: string, listener: () => void): void };

interface Payload {
  ledger: string;
  gate: string;
  n: number;
  size: number;
  fails: boolean;
}

const [server = "", name = "", drain = "30"] = process.argv.slice(2);
const worker = new Worker({ server, name, drainLimitMs: Number(drain) * 1_000, slots: 20 });

worker.handler("suite", async (call: Call) => {
  const { ledger, gate, n, size, fails } = call.payload as Payload;
  const write = (word: string): void => appendFileSync(ledger, `${word} ${call.attempt.run} ${process.pid}\n`);
  appendFileSync(ledger, `trace ${call.attempt.run} ${call.attempt.traceparent}\n`);
  write("begun");
  call.log("begun");
  call.progress({ percent: 50 });
  if (size > 0) {
    call.log("x".repeat(size));
    call.progress({ percent: 1_000, phase: "p".repeat(size), message: "m".repeat(size) });
  }
  while (!existsSync(gate)) {
    if (call.signal.aborted) {
      write("stopped");
      throw new HandlerError("told to stop");
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  write("ended");
  if (size > 0) {
    if (fails) throw new HandlerError("e".repeat(size));
    return "x".repeat(size);
  }
  if (fails) return { n: 10n }; // no JSON
  return { n, pid: process.pid };
});

for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => worker.stop());
await worker.run();
