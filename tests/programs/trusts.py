"""Posts JSON, and trusts what its code says and nothing else. Arguments: FILE URL BODY [CLIENT …]. FILE is a
bundle of roots, or `certifi`; CLIENT is requests, httpx or urllib (all that are there). No variable is read
for it. Says `CLIENT STATUS`, or `CLIENT failed WHY`."""

import ssl
import sys
import urllib.request

file, url, body, *clients = sys.argv[1:]
if file == "certifi":
    import certifi

    file = certifi.where()


def with_requests():
    import requests

    # A path for `verify` is stronger than any variable.
    headers = {"content-type": "application/json"}
    return requests.post(url, body, headers=headers, verify=file, timeout=60).status_code


def with_httpx():
    import httpx

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=file)
    headers = {"content-type": "application/json"}
    with httpx.Client(verify=context, trust_env=False, timeout=60) as client:
        return client.post(url, content=body, headers=headers).status_code


def with_urllib():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=file)
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        return answer.status


for client in clients or ["urllib"]:
    try:
        print(client, globals()[f"with_{client}"](), flush=True)
    except OSError as e:
        print(client, "failed", e, flush=True)
    except Exception as e:
        if "CERTIFICATE_VERIFY_FAILED" not in str(e):
            raise
        print(client, "failed", e, flush=True)
