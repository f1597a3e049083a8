"""Posts a JSON body with httpx. Arguments: URL BODY. Prints what came back as one JSON line."""

import json
import sys

import httpx

url, body = sys.argv[1:]
answer = httpx.post(url, content=body, headers={"content-type": "application/json"}, timeout=60)
print(json.dumps({"status": answer.status_code, "http": answer.http_version.removeprefix("HTTP/"), "body": answer.text}))
