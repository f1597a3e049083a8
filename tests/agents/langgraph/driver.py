"""LangGraph with its SQLite checkpointer: time travel, and crashes at every durability."""

import asyncio
import os
import sqlite3
import sys
import uuid

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from task import TASK



def mcp_tools():
    """The service's tools over MCP. The adapters only know asynchronous graphs; this one is not."""
    from langchain_mcp_adapters.client import MultiServerMCPClient

    if TASK.transport == "mcp_stdio":
        server = {"transport": "stdio", "command": TASK.stdio[0], "args": TASK.stdio[1:]}
    else:
        server = {"transport": "streamable_http", "url": TASK.service + "/mcp"}
    tools = asyncio.run(MultiServerMCPClient({TASK.kind: server}).get_tools())
    for one in tools:
        one.func = lambda call=one.coroutine, **arguments: asyncio.run(call(**arguments))
    return tools


TOOLS = mcp_tools() if TASK.over_mcp else [tool(function) for function in TASK.tools()]
MODEL = ChatOpenAI(model="scripted", base_url=TASK.model + "/v1", api_key="none", max_retries=0).bind_tools(TOOLS)
THREAD = {"configurable": {"thread_id": "1"}}


def think(state):
    return {"messages": [MODEL.invoke(state["messages"])]}


def next_node(state):
    return "tools" if state["messages"][-1].tool_calls else END


def acted(messages):
    """Whether a history has the action in it, done or only meant."""
    calls = (call for m in messages if isinstance(m, AIMessage) for call in m.tool_calls)
    return any(TASK.is_act(call["name"], call["args"]) for call in calls)


def act_and_ask(state):
    """A node as people write it: it acts under a key of its own, then asks for what comes next."""
    call = state["messages"][-1].tool_calls[0]
    tool = next(one for one in TOOLS if one.name == call["name"])
    arguments = call["args"] | {"ref": str(uuid.uuid4())} if call["name"] == TASK.act else call["args"]
    result = tool.invoke(arguments)
    if TASK.is_act(call["name"], call["args"]):
        interrupt("Shall I tell the landlord?")
    return {"messages": [ToolMessage(str(result), tool_call_id=call["id"], name=call["name"])]}


graph = StateGraph(MessagesState)
graph.add_node("think", think)
graph.add_node("tools", act_and_ask if TASK.restore == "interrupt" else ToolNode(TOOLS))
graph.add_edge(START, "think")
graph.add_conditional_edges("think", next_node)
graph.add_edge("tools", "think")
app = graph.compile(checkpointer=SqliteSaver(sqlite3.connect(TASK.at("checkpoints.db"), check_same_thread=False)))

durability = "exit" if TASK.restore == "exit_crash" else "sync"
asked = {"messages": [HumanMessage(TASK.prompt)]}
if TASK.restore == "interrupt":
    app.invoke(asked, THREAD)
    end = app.invoke(Command(resume="yes"), THREAD)
elif TASK.part == "first":
    end = app.invoke(asked, THREAD, durability=durability)
elif TASK.restore == "time_travel":
    # The newest checkpoint from which the model is asked next and does not know of the action.
    before = next(
        state
        for state in app.get_state_history(THREAD)
        if state.next == ("think",) and not acted(state.values["messages"])
    )
    config = before.config
    if TASK.redirects:
        config = app.update_state(config, {"messages": [HumanMessage(TASK.again)]}, as_node=START)
    end = app.invoke(None, config)
elif TASK.restore == "exit_crash":
    # Nothing was saved, so the user asks again.
    end = app.invoke({"messages": [HumanMessage(TASK.anew)]}, THREAD)
else:
    end = app.invoke(None, THREAD)
print(end["messages"][-1].content)
