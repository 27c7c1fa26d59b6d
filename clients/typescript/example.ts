// An example worker: node example.js http://localhost:7070
//
// Offers `greet` and `count`. A job for it:
//
//     name: greet
//     steps: [{ id: hello, handler: { name: greet, payload: { who: "world" } } }]

import { HandlerError, Worker } from "./rota-worker.js";

declare const process: { argv: string[]; on(signal: string, listener: () => void): void };

const worker = new Worker({ server: process.argv[2] ?? "http://localhost:7070", name: "example", slots: 20 });

worker.handler("greet", (call) => {
  const { who } = (call.payload ?? {}) as { who?: string };
  if (!who) throw new HandlerError("the payload has no `who`", { kind: "invalid_input", retry: false });
  call.log(`greeting ${who}`);
  return { said: `hello, ${who}`, attempt: call.attempt.attempt };
});

// Counts slowly, says how far it is, and stops when it is told to.
worker.handler("count", async (call) => {
  const { to = 10 } = (call.payload ?? {}) as { to?: number };
  for (let n = 1; n <= to; n++) {
    call.progress({ percent: Math.floor((100 * n) / to), message: `${n} of ${to}` });
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, 1_000);
      call.signal.addEventListener("abort", () => resolve(clearTimeout(timer)), { once: true });
    });
    if (call.signal.aborted) throw new HandlerError("told to stop");
  }
  return { counted: to };
});

for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => worker.stop());
await worker.run();
