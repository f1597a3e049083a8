"""AutoGen: an agent's state is saved and loaded into another agent."""

import asyncio
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from task import TASK


def assistant():
    model = OpenAIChatCompletionClient(
        model="gpt-4o", base_url=TASK.model + "/v1", api_key="none", max_retries=0
    )
    return AssistantAgent("assistant", model, tools=list(TASK.tools()), max_tool_iterations=10)


async def ask(agent, words):
    print((await agent.run(task=words)).messages[-1].to_text())


async def main():
    file = TASK.at("state.json")
    if TASK.part in ("first", "both"):
        agent = assistant()
        if TASK.opening:
            await ask(agent, TASK.opening)
        with open(file, "w") as state:
            json.dump(await agent.save_state(), state)
        await ask(agent, TASK.prompt)
    if TASK.part in ("second", "both"):
        agent = assistant()
        with open(file) as state:
            await agent.load_state(json.load(state))
        await ask(agent, TASK.anew)


asyncio.run(main())
