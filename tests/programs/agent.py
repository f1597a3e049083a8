"""An agent with a task, a memory, and a checkpoint file. Python's standard library only.

It knows nothing of ACRFence. It plans, saves its state, acts, and notes down that it has acted.
Whoever restores it from the saved state restores an agent that has not acted yet; and like any
model, it words its request anew each time: another reference, another time, another order of keys.

It says what it does line by line, and waits for a line on standard input wherever the outside
world may act: after saving (`checkpoint`), and after the answer to its action (`answer STATUS BODY`).
Refused, it tries again when told to, and gives up when its standard input ends.
"""

import argparse
import datetime
import json
import os
import random
import sys
import urllib.error
import urllib.request
import uuid


def call(url, body=None):
    """Sends a request; returns the status and the body of the answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def save(path, state):
    """Replaces the checkpoint as a whole, as a framework's saver does."""
    with open(path + ".new", "w") as file:
        json.dump(state, file)
    os.replace(path + ".new", path)


def say(*words):
    print(*words, flush=True)


def pause():
    return sys.stdin.readline()


def plan(task):
    """What can be done safely beforehand. Returns what the agent wants to remember."""
    if task.do == "pay":
        status, body = call(f"{task.service}/v1/balance")
        return {"balance": json.loads(body)["balance"]} if status == 200 else sys.exit(f"no balance: {status} {body}")
    wish = {"operation": "delete_customer_data", "target": task.to, "reason": "the customer asked for it"}
    status, body = call(f"{task.service}/v1/approvals", wish)
    return {"token": json.loads(body)["token"]} if status == 201 else sys.exit(f"no approval: {status} {body}")


def act(task, memory):
    """The irreversible part."""
    if task.do == "pay":
        path = "/v1/transfers"
        body = {
            "to": task.to,
            "amount": task.amount,
            "currency": "EUR",
            "reference": f"pay-{uuid.uuid4()}",
            "requested_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }
    else:
        path = "/v1/deletions"
        body = {"token": memory["token"], "customer_id": task.to}
    keys = list(body)
    random.Random(task.mood).shuffle(keys)
    request = {key: body[key] for key in keys}
    say("request", json.dumps(request))
    return call(task.service + path, request)


def attempt(task, memory):
    status, body = act(task, memory)
    say("answer", status, " ".join(body.split("\n")))
    return status


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", required=True, help="the checkpoint file")
    parser.add_argument("--service", required=True, help="URL of the bank or the approval service")
    parser.add_argument("--do", choices=["pay", "delete"], required=True)
    parser.add_argument("--to", required=True, help="payee, or customer whose data goes")
    parser.add_argument("--amount", type=int, default=0)
    parser.add_argument("--mood", type=int, default=0, help="decides the order of the keys")
    task = parser.parse_args()

    if os.path.exists(task.state):
        with open(task.state) as file:
            state = json.load(file)
        say("restored", state["step"])
    else:
        state = {"step": "plan", "memory": {}}

    if state["step"] == "plan":
        state = {"step": "act", "memory": plan(task)}
        save(task.state, state)
        say("checkpoint")
        pause()
    if state["step"] == "act":
        status = attempt(task, state["memory"])
        while status >= 400:
            if not pause():
                sys.exit(3)
            status = attempt(task, state["memory"])
        pause()
        state["step"] = "done"
        save(task.state, state)
    say("done")


main()
