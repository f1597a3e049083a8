"""LlamaIndex workflows with an Ollama model: a context is saved as a dictionary while the workflow
waits for a person, and a new run begins from it."""

import asyncio
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from ollama import AsyncClient
from task import TASK
from workflows import Context, Workflow, step
from workflows.events import Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent

TOOLS = {function.__name__: function for function in TASK.tools()}
MODEL = AsyncClient(host=TASK.model)


class Call(Event):
    name: str
    arguments: dict


class Assistant(Workflow):
    @step
    async def begin(self, context: Context, event: StartEvent) -> InputRequiredEvent:
        await context.store.set("messages", [{"role": "user", "content": event.words}])
        return InputRequiredEvent()

    @step
    async def think(self, context: Context, event: HumanResponseEvent) -> Call | StopEvent:
        messages = await context.store.get("messages")
        if event.response:
            messages.append({"role": "user", "content": event.response})
        answer = (await MODEL.chat("scripted", messages, tools=list(TOOLS.values()))).message
        messages.append(answer.model_dump(exclude_none=True))
        await context.store.set("messages", messages)
        for call in answer.tool_calls or []:
            return Call(name=call.function.name, arguments=dict(call.function.arguments))
        return StopEvent(result=answer.content)

    @step
    async def act(self, context: Context, event: Call) -> InputRequiredEvent:
        result = await asyncio.to_thread(TOOLS[event.name], **event.arguments)
        messages = await context.store.get("messages")
        messages.append({"role": "tool", "tool_name": event.name, "content": result})
        await context.store.set("messages", messages)
        return InputRequiredEvent()


async def follow(handler, words):
    """Lets a run go on whenever it waits; returns its state of before the action and what it said."""
    saved = None
    async for event in handler.stream_events():
        if isinstance(event, InputRequiredEvent):
            messages = await handler.ctx.store.get("messages")
            calls = (call["function"] for message in messages for call in message.get("tool_calls") or [])
            if not any(TASK.is_act(call["name"], call["arguments"]) for call in calls):
                saved = handler.ctx.to_dict()
            handler.ctx.send_event(HumanResponseEvent(response=words))
            words = ""
    return saved, await handler


async def main():
    file = TASK.at("context.json")
    if TASK.part in ("first", "both"):
        saved, said = await follow(Assistant(timeout=120).run(words=TASK.prompt), "")
        with open(file, "w") as state:
            json.dump(saved, state)
        print(said)
    if TASK.part in ("second", "both"):
        workflow = Assistant(timeout=120)
        with open(file) as state:
            context = Context.from_dict(workflow, json.load(state))
        handler = workflow.run(ctx=context)
        handler.ctx.send_event(HumanResponseEvent(response=TASK.again if TASK.redirects else ""))
        print((await follow(handler, ""))[1])


asyncio.run(main())
