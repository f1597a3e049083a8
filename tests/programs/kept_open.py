"""Keeps a connection open, and uses it again when told. Argument: URL.

Says `open`, waits for a line, asks again over the same connection, and opens another one if that
one is gone, as clients with a pool do.
"""

import http.client
import sys

from connection import ask, open_connection, report

url = sys.argv[1]
connection = open_connection(url)
ask(connection, url)
print("open", flush=True)
sys.stdin.readline()
try:
    ask(connection, url)
    print("still the same connection", flush=True)
except (http.client.HTTPException, OSError):
    report(url)
