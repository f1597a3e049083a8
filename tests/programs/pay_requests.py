"""Posts a JSON body with requests. Arguments: URL BODY. Prints what came back as one JSON line."""

import json
import sys

import requests

url, body = sys.argv[1:]
answer = requests.post(url, data=body, headers={"content-type": "application/json"}, timeout=60)
print(json.dumps({"status": answer.status_code, "http": f"{answer.raw.version / 10:g}", "body": answer.text}))
