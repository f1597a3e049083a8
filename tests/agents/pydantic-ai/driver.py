"""Pydantic AI with an Anthropic model: a message history is saved and given to another run."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from pydantic_ai import Agent, ModelMessagesTypeAdapter
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from task import TASK

provider = AnthropicProvider(api_key="none", base_url=TASK.model)


async def confirm(message, response_type, params, context):
    """Whoever is asked whether a transfer is meant says yes."""
    return {"sure": True}


def toolsets():
    """The service over MCP, if that is how it is reached."""
    if not TASK.over_mcp:
        return []
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai.mcp import MCPToolset

    server = StdioTransport(TASK.stdio[0], TASK.stdio[1:]) if TASK.transport == "mcp_stdio" else TASK.service + "/mcp"
    return [MCPToolset(server, elicitation_handler=confirm)]


agent = Agent(
    AnthropicModel("scripted", provider=provider),
    tools=[] if TASK.over_mcp else list(TASK.tools()),
    toolsets=toolsets(),
)


def ask(words, history):
    run = agent.run_sync(words, message_history=history)
    print(run.output)
    return run.all_messages()


file = TASK.at("history.json")
if TASK.part in ("first", "both"):
    history = ask(TASK.opening, []) if TASK.opening else []
    with open(file, "wb") as state:
        state.write(ModelMessagesTypeAdapter.dump_json(history))
    ask(TASK.prompt, history)
if TASK.part in ("second", "both"):
    with open(file, "rb") as state:
        ask(TASK.anew, ModelMessagesTypeAdapter.validate_json(state.read()))
