"""The storm's worker in Python: python3 worker.py SERVER NAME. Its handler calls the ledger."""

import json
import sys
import urllib.request

from rota_worker import Call, HandlerError, Worker

worker = Worker(sys.argv[1], name=sys.argv[2], drain_limit=3.0, slots=20)


@worker.handler("call")
def call_the_ledger(call: Call) -> object:
    told = dict(call.payload, run=call.run, attempt=call.attempt, fence=call.fence)
    request = urllib.request.Request(call.payload["ledger"], data=json.dumps(told).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return {"status": answer.status}
    except OSError as error:
        raise HandlerError(f"the ledger did not take it: {error}") from error


worker.run()
