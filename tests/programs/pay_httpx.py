"""Posts JSON bodies with httpx, one after the other. Arguments: URL BODY [BODY …]. Prints a JSON line for each."""

import json
import sys

import httpx

url, *bodies = sys.argv[1:]
for body in bodies:
    answer = httpx.post(url, content=body, headers={"content-type": "application/json"}, timeout=60)
    print(json.dumps({"status": answer.status_code, "http": answer.http_version.removeprefix("HTTP/"), "body": answer.text}))
