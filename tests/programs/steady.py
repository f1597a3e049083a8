"""An agent that reads the trusted roots once, when it starts. Argument: URL. Posts each line that it is
told, over a connection of its own, and says `answer STATUS` or `failed WHY`."""

import ssl
import sys
import urllib.request

context = ssl.create_default_context()
print("started", flush=True)
for line in sys.stdin:
    request = urllib.request.Request(
        sys.argv[1], line.encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            print("answer", answer.status, flush=True)
    except OSError as e:
        print("failed", e, flush=True)
