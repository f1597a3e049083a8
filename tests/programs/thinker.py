"""An agent that does what a model says. Python's standard library only; it knows nothing of ACRFence.

Its memory is the conversation, saved as JSON after every step; whoever puts an older file back
restores it. Says `step WHAT` line by line; with `--die-after WHAT` it waits there to be killed.
"""

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
import uuid

TOOLS = [
    {"name": "balance", "description": "tells the balance", "input_schema": {"type": "object"}},
    {"name": "pay", "description": "pays somebody", "input_schema": {"type": "object"}},
]


def call(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--history", required=True, help="the conversation")
    parser.add_argument("--model", required=True, help="URL of the model")
    parser.add_argument("--bank", required=True, help="URL of the bank")
    parser.add_argument("--say", help="what the person says now; nothing to go on")
    parser.add_argument("--die-after", default="", help="the step after which to wait for the end")
    parser.add_argument("--errand", help="whom the program itself pays at the end, without its model")
    parser.add_argument("--twice", action="store_true", help="pay under references of its own, and run that step again when told to")
    parser.add_argument("--aborted", action="store_true", help="close calls without a result as aborted first")
    args = parser.parse_args()

    history = []
    if os.path.exists(args.history):
        with open(args.history) as file:
            history = json.load(file)

    def save(what):
        with open(args.history + ".new", "w") as file:
            json.dump(history, file)
        os.replace(args.history + ".new", args.history)
        print("step", what, flush=True)
        if what == args.die_after:
            sys.stdin.read()

    def run(tool):
        if tool["name"] == "balance":
            status, body = call(args.bank + "/v1/balance")
        else:
            own = {"reference": f"pay-{uuid.uuid4()}"} if args.twice else {}
            status, body = call(args.bank + "/v1/transfers", {"currency": "EUR", **tool["input"], **own})
        print("result", status, " ".join(body.split("\n")), flush=True)
        if "sent" == args.die_after and tool["name"] == "pay":
            print("step sent", flush=True)
            sys.stdin.read()
        return {"type": "tool_result", "tool_use_id": tool["id"], "content": body, "is_error": status >= 400}

    def run_open_calls():
        last = history[-1]
        tools = [block for block in last["content"] if block["type"] == "tool_use"] if last["role"] == "assistant" else []
        if not tools:
            return False
        if args.aborted:
            results = [
                {"type": "tool_result", "tool_use_id": tool["id"], "content": "aborted by the user", "is_error": True}
                for tool in tools
            ]
        else:
            results = [run(tool) for tool in tools]
            if args.twice and tools[0]["name"] == "pay":
                # A step that waits for a person and then runs again from its beginning.
                print("step interrupted", flush=True)
                sys.stdin.readline()
                results = [run(tool) for tool in tools]
        history.append({"role": "user", "content": results})
        save("-".join(tool["name"] for tool in tools))
        return True

    if args.aborted or not args.say:
        if history:
            run_open_calls()
        args.aborted = False
    if args.say:
        history.append({"role": "user", "content": [{"type": "text", "text": args.say}]})
    while True:
        request = {"model": "scripted", "max_tokens": 1000, "tools": TOOLS, "messages": history}
        status, body = call(args.model + "/v1/messages", request)
        if status != 200:
            sys.exit(f"the model answered {status}: {body}")
        history.append({"role": "assistant", "content": json.loads(body)["content"]})
        save("answer")
        if not run_open_calls():
            break
    if args.errand:
        wish = {"currency": "EUR", "to": args.errand, "amount": 5, "reference": f"errand-{uuid.uuid4()}"}
        status, body = call(args.bank + "/v1/transfers", wish)
        print("errand", status, " ".join(body.split("\n")), flush=True)
    print("done", flush=True)


main()
