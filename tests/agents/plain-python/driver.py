"""No framework: a loop around a model that speaks Chat Completions. What it remembers is a list, and
that is in this process alone.

Told its words through a pair of named pipes, it has nothing open between them, so that it can be saved.
"""

import ctypes
import inspect
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from task import CLIENT, TASK

TOOLS = {function.__name__: function for function in TASK.tools()}
NAMES = {str: "string", int: "integer"}


def described(function):
    """A function as Chat Completions want it described."""
    parameters = inspect.signature(function).parameters.values()
    schema = {
        "type": "object",
        "properties": {one.name: {"type": NAMES[one.annotation]} for one in parameters},
        "required": [one.name for one in parameters if one.default is one.empty],
    }
    return {"type": "function", "function": {"name": function.__name__, "description": function.__doc__, "parameters": schema}}


def think(messages):
    body = {"model": "scripted", "messages": messages, "tools": [described(one) for one in TOOLS.values()]}
    answer = CLIENT.post(TASK.model + "/v1/chat/completions", json=body, timeout=600)
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]


def ask(messages, words):
    """Does what the user says; returns the last words."""
    messages.append({"role": "user", "content": words})
    for _ in range(10):
        said = think(messages)
        messages.append(said)
        if not said.get("tool_calls"):
            return said["content"]
        for call in said["tool_calls"]:
            function = call["function"]
            try:
                result = TOOLS[function["name"]](**json.loads(function["arguments"]))
            except (KeyError, TypeError, ValueError) as wrong:
                result = f"Error: {wrong!r}"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    raise RuntimeError("the model does not come to an end")


def told():
    """Lives by what it is told, until it is told nothing."""
    # Nothing that would tie it to whoever started it.
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    os.dup2(os.open("/dev/null", os.O_RDWR), 0)
    log = os.open(TASK.at("agent.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 1024)
    messages, said = [], "ready"
    while True:
        with open(TASK.at("told/answers"), "w") as answers:
            answers.write(" ".join(said.split()) + "\n")
        with open(TASK.at("told/orders")) as orders:
            words = orders.readline().strip()
        if not words:
            break
        said = ask(messages, words)
    with open(TASK.at("told/answers"), "w") as answers:
        answers.write("bye\n")


if TASK.part == "told":
    told()
else:
    print(ask([], TASK.prompt))
