#!/usr/bin/env python3
"""Speaks the part of Ollama's API that the analyzer uses, in front of llama-server. It is not Ollama.

For agents it also passes llama-server's own interfaces on (OpenAI's and Anthropic's, under `/v1`), and takes
tools in Ollama's.
"""

import argparse
import glob
import http.client
import http.server
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time

VERSION = "0.0.0-front"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_llama(root: str, model: str, threads: int, log: str, agents: bool) -> tuple[subprocess.Popen, int]:
    """Starts llama-server through the loader of the folder it was unpacked to."""
    libs = f"{root}/root/usr/lib/x86_64-linux-gnu"
    loader = next(p for p in (f"{root}/root/usr/lib64/ld-linux-x86-64.so.2", f"{libs}/ld-linux-x86-64.so.2") if os.path.exists(p))
    backend = os.environ.get("GGML_BACKEND_PATH") or f"{libs}/ggml/backends0/libggml-cpu-haswell.so"
    extra = [d for d in glob.glob(f"{libs}/*") if os.path.isdir(d) and glob.glob(f"{d}/*.so*")]
    port = free_port()
    server = next(p for p in (f"{root}/root/usr/bin/llama-server", f"{root}/root/usr/share/llama.cpp/llama-server") if os.path.isfile(p))
    child = subprocess.Popen(
        [loader, "--library-path", ":".join([libs, *extra]), server,
         "--model", model, "--host", "127.0.0.1", "--port", str(port), "--threads", str(threads),
         "--ctx-size", "32768" if agents else "4096", "--parallel", "1", "--no-webui",
         *(["--jinja"] if agents else [])],
        env={**os.environ, "GGML_BACKEND_PATH": backend}, stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL, stderr=open(log, "w"),
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if child.poll() is not None:
            sys.exit(f"llama-server ended at once; see {log}")
        try:
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            c.request("GET", "/health")
            if c.getresponse().status == 200:
                return child, port
        except OSError:
            pass
        # Loading a model has no event to wait for but its own answer.
        time.sleep(0.2)
    child.kill()
    sys.exit("llama-server did not load the model within two minutes")


def with_tools(messages: list) -> list:
    """Ollama's messages as OpenAI's: the calls get ids, by which their results refer to them."""
    translated, open_calls = [], []
    for message in messages:
        one = {"role": message["role"], "content": message.get("content") or ""}
        if message.get("tool_calls"):
            one["tool_calls"] = []
            for call in message["tool_calls"]:
                made = f"call_{len(translated)}_{len(one['tool_calls'])}"
                open_calls.append(made)
                function = call["function"]
                text = json.dumps(function["arguments"])
                one["tool_calls"].append(
                    {"id": made, "type": "function", "function": {"name": function["name"], "arguments": text}}
                )
        if message["role"] == "tool" and open_calls:
            one["tool_call_id"] = open_calls.pop(0)
        translated.append(one)
    return translated


def read_calls(message: dict, tools: list) -> None:
    """Small models write a call out as JSON, often in a code fence, instead of in the form that their template asks
    for. Like the parsers of other servers this takes such a message, if it is nothing else, for the call."""
    text = (message.get("content") or "").strip()
    if message.get("tool_calls") or not tools:
        return
    fenced = re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", text, re.DOTALL)
    try:
        call = json.loads(fenced[1] if fenced else text)
    except ValueError:
        return
    names = [tool["function"]["name"] for tool in tools]
    if not isinstance(call, dict) or call.get("name") not in names or not isinstance(call.get("arguments"), dict):
        return
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
    message["content"] = None
    message["tool_calls"] = [{"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}]


class Front(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    llama_port = 0
    model = ""
    lock = threading.Lock()
    agents = False

    def log_message(self, *_):
        pass

    def reply(self, status: int, body) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def pass_on(self, body: bytes) -> None:
        """Lets llama-server answer, one request at a time, and passes that on as it comes; an answer of Chat
        Completions that is no stream as a whole, with its calls read."""
        asked = json.loads(body)
        whole = self.path == "/v1/chat/completions" and not asked.get("stream")
        with self.lock:
            c = http.client.HTTPConnection("127.0.0.1", self.llama_port, timeout=1800)
            c.request("POST", self.path, body, {"Content-Type": "application/json"})
            answer = c.getresponse()
            if whole:
                got = json.loads(answer.read())
                for choice in got.get("choices", []):
                    read_calls(choice["message"], asked.get("tools", []))
                return self.reply(answer.status, got)
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type", "application/json"))
            # The length of a stream is not known beforehand.
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            while piece := answer.read1(65536):
                self.wfile.write(piece)
                self.wfile.flush()

    def do_GET(self):
        if self.path == "/api/version":
            self.reply(200, {"version": VERSION})
        elif self.path == "/api/tags":
            self.reply(200, {"models": [{"name": self.model, "model": self.model,
                                         "modified_at": "2031-01-01T00:00:00Z", "size": 0, "digest": "", "details": {}}]})
        else:
            self.reply(404, {"error": "not found"})

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if self.agents and self.path.startswith("/v1/"):
            return self.pass_on(body)
        try:
            asked = json.loads(body)
        except ValueError:
            return self.reply(400, {"error": "invalid JSON"})
        if asked.get("model", asked.get("name")) != self.model:
            return self.reply(404, {"error": f"model '{asked.get('model')}' not found"})
        if self.path == "/api/show":
            return self.reply(200, {"license": "", "modelfile": "", "parameters": "", "template": "", "details": {}})
        if self.path != "/api/chat":
            return self.reply(404, {"error": "not found"})
        options = asked.get("options") or {}
        wanted = {
            "messages": with_tools(asked["messages"]) if self.agents
            else [{"role": m["role"], "content": m["content"]} for m in asked["messages"]],
            "temperature": options.get("temperature", 0),
            "seed": options.get("seed", 0),
            "max_tokens": options.get("num_predict", 1024 if self.agents else 64),
            "cache_prompt": True,
        }
        if isinstance(asked.get("format"), dict):
            wanted["response_format"] = {"type": "json_schema", "json_schema": {"schema": asked["format"]}}
        if self.agents and asked.get("tools"):
            wanted["tools"] = asked["tools"]
        began = time.monotonic_ns()
        with self.lock:
            c = http.client.HTTPConnection("127.0.0.1", self.llama_port, timeout=300)
            c.request("POST", "/v1/chat/completions", json.dumps(wanted), {"Content-Type": "application/json"})
            answer = c.getresponse()
            got = json.loads(answer.read())
        if answer.status != 200:
            return self.reply(500, {"error": str(got.get("error"))})
        said = got["choices"][0]["message"]
        read_calls(said, wanted.get("tools", []))
        message = {"role": "assistant", "content": said["content"] or ""}
        if said.get("tool_calls"):
            calls = [call["function"] for call in said["tool_calls"]]
            message["tool_calls"] = [
                {"function": {"name": call["name"], "arguments": json.loads(call["arguments"])}} for call in calls
            ]
        self.reply(200, {
            "model": self.model, "created_at": "2031-01-01T00:00:00Z", "done": True, "done_reason": "stop",
            "message": message,
            "total_duration": time.monotonic_ns() - began, "load_duration": 0,
            "prompt_eval_count": got.get("usage", {}).get("prompt_tokens", 0), "prompt_eval_duration": 0,
            "eval_count": got.get("usage", {}).get("completion_tokens", 0), "eval_duration": 0,
        })


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama", required=True, help="folder of fetch_llama_server.sh")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--name", required=True, help="name the model is asked for by")
    parser.add_argument("--port", type=int, default=11435, help="0 takes any free one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--log", help="where llama-server writes what it has to say (default: in its folder)")
    parser.add_argument("--agents", action="store_true", help="for agents: tools, long conversations, /v1")
    parser.add_argument("--until-stdin-ends", action="store_true", help="stop when whoever started this is gone")
    args = parser.parse_args()
    child, Front.llama_port = start_llama(args.llama, args.model, args.threads, args.log or f"{args.llama}/server.log", args.agents)
    Front.model, Front.agents = args.name, args.agents
    server = http.server.ThreadingHTTPServer(("127.0.0.1", args.port), Front)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if args.until_stdin_ends:
        threading.Thread(target=lambda: (sys.stdin.buffer.read(), server.shutdown()), daemon=True).start()
    print(f"ready on http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    finally:
        child.terminate()


if __name__ == "__main__":
    main()
