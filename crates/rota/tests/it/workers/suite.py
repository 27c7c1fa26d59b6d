"""The suite's worker in Python: python3 suite.py SERVER NAME DRAIN_SECONDS"""

import os
import sys

from rota_worker import Call, HandlerError, Worker

worker = Worker(sys.argv[1], name=sys.argv[2], drain_limit=float(sys.argv[3]), slots=20)


def write(call: Call, word: str) -> None:
    with open(call.payload["ledger"], "a") as ledger:
        ledger.write(f"{word} {call.run} {os.getpid()}\n")


@worker.handler("suite")
def suite(call: Call) -> object:
    with open(call.payload["ledger"], "a") as ledger:
        ledger.write(f"trace {call.run} {call.traceparent}\n")
    write(call, "begun")
    call.log("begun")
    call.progress(percent=50)
    size = call.payload["size"]
    if size:
        call.log("x" * size)
        call.progress(percent=1_000, phase="p" * size, message="m" * size)
    while not os.path.exists(call.payload["gate"]):
        if call.cancelled.wait(0.02):
            write(call, "stopped")
            raise HandlerError("told to stop")
    write(call, "ended")
    if size:
        if call.payload["fails"]:
            raise HandlerError("e" * size)
        return "x" * size
    if call.payload["fails"]:
        return {"n": float("nan")}  # no JSON
    return {"n": call.payload["n"], "pid": os.getpid()}


worker.run()
