"""A scripted stand-in for a language model: Anthropic Messages, not streamed. Python's standard library only.

It looks at the balance first, then pays as the last task says ("pay NAME AMOUNT"), each time under a
fresh reference, then is done. It remembers nothing: what it does next follows from the history it is
shown, as with a real model. A note by ACRFence that such a payment was made is believed. Prints `ready PORT`,
and `heard …` for each request: `nothing new`, or the note.
"""

import http.server
import json
import re
import uuid


def blocks(message):
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def note_in(messages):
    """What ACRFence says at the end; none when it says nothing."""
    text = blocks(messages[-1])[-1].get("text", "")
    return text if text.startswith("[Note by ACRFence") else None


def answer(messages):
    """The content of the answer to a history."""
    note = note_in(messages)
    task, since = None, []
    for message in messages:
        for block in blocks(message):
            wish = re.search(r"pay (\w+) (\d+)", block.get("text", "")) if message["role"] == "user" else None
            if wish:
                task, since = wish, []
            elif block["type"] == "tool_use":
                since.append(block["name"])
    if task is None:
        return [{"type": "text", "text": "There is nothing to do."}]
    if "balance" not in since:
        call = ("balance", {})
    elif "pay" not in since and note and f'"to": "{task[1]}"' in note:
        return [{"type": "text", "text": f"{task[1]} was paid before."}]
    elif "pay" not in since:
        call = ("pay", {"to": task[1], "amount": int(task[2]), "reference": f"pay-{uuid.uuid4()}"})
    else:
        return [{"type": "text", "text": f"{task[1]} was paid."}]
    return [
        {"type": "text", "text": f"I will use {call[0]}."},
        {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": call[0], "input": call[1]},
    ]


class Model(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        content = answer(request["messages"])
        heard = note_in(request["messages"]) or "nothing new"
        print("heard", " ".join(heard.split("\n")), flush=True)
        calls = any(block["type"] == "tool_use" for block in content)
        body = json.dumps(
            {
                "id": f"msg_{uuid.uuid4().hex[:24]}",
                "type": "message",
                "role": "assistant",
                "model": request["model"],
                "content": content,
                "stop_reason": "tool_use" if calls else "end_turn",
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }
        ).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
print("ready", server.server_port, flush=True)
server.serve_forever()
