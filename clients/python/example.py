"""An example worker: python3 example.py http://localhost:7070

Offers `greet` and `count`. A job for it:

    name: greet
    steps: [{ id: hello, handler: { name: greet, payload: { who: "world" } } }]
"""

import logging
import sys

from rota_worker import Call, HandlerError, Worker

logging.basicConfig(level=logging.INFO)
worker = Worker(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:7070", slots=20)


@worker.handler("greet")
def greet(call: Call) -> object:
    who = (call.payload or {}).get("who")
    if not who:
        raise HandlerError("the payload has no `who`", kind="invalid_input", retry=False)
    call.log(f"greeting {who}")
    return {"said": f"hello, {who}", "attempt": call.attempt}


@worker.handler("count")
def count(call: Call) -> object:
    """Counts slowly, says how far it is, and stops when it is told to."""
    last = int((call.payload or {}).get("to", 10))
    for n in range(1, last + 1):
        call.progress(percent=100 * n // last, message=f"{n} of {last}")
        if call.cancelled.wait(1.0):
            raise HandlerError("told to stop")
    return {"counted": last}


worker.run()
