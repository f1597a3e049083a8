"""CrewAI: `replay`, which runs a crew again from one of its tasks on."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"
os.environ["CREWAI_TRACING_ENABLED"] = "false"
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from task import TASK

model = LLM(model="gpt-4o", base_url=TASK.model + "/v1", api_key="none")


def servers():
    """The service over MCP, if that is how it is reached."""
    if not TASK.over_mcp:
        return []
    from crewai.mcp import MCPServerHTTP

    return [MCPServerHTTP(url=TASK.service + "/mcp")]


assistant = Agent(
    role="assistant",
    goal="Do what the user asks.",
    backstory="You work for the user.",
    llm=model,
    tools=[] if TASK.over_mcp else [tool(function) for function in TASK.tools()],
    mcps=servers() or None,
)


def work(words):
    return Task(description=words, expected_output="What was done.", agent=assistant)


def crew(words):
    works = [work(TASK.opening)] if TASK.opening else []
    return Crew(agents=[assistant], tasks=[*works, work(words)])


if TASK.part in ("first", "both"):
    print(crew(TASK.prompt).kickoff().raw)
if TASK.part in ("second", "both"):
    restored = crew(TASK.anew)
    from crewai.memory.storage.kickoff_task_outputs_storage import KickoffTaskOutputsSQLiteStorage

    last = KickoffTaskOutputsSQLiteStorage().load()[-1]["task_id"]
    print(restored.replay(task_id=last).raw)
