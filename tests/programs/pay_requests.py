"""Posts JSON bodies with requests, one after the other. Arguments: URL BODY [BODY …]. Prints a JSON line for each."""

import json
import sys

import requests

url, *bodies = sys.argv[1:]
for body in bodies:
    answer = requests.post(url, data=body, headers={"content-type": "application/json"}, timeout=60)
    print(json.dumps({"status": answer.status_code, "http": f"{answer.raw.version / 10:g}", "body": answer.text}))
