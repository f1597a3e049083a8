"""Google ADK: `rewind_async`, which undoes an invocation. Speaks Gemini."""

import asyncio
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from task import TASK

os.environ["GOOGLE_GEMINI_BASE_URL"] = TASK.model
os.environ["GOOGLE_API_KEY"] = "none"
os.environ["GOOGLE_GENAI_USE_VERTEXAI"] = "false"

from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService
from google.genai import types

WHO = {"app_name": "assistant", "user_id": "user"}
agent = LlmAgent(name="assistant", model="gemini-2.5-flash", tools=list(TASK.tools()))
sessions = DatabaseSessionService(db_url="sqlite+aiosqlite:///" + TASK.at("sessions.db"))
runner = Runner(app_name=WHO["app_name"], agent=agent, session_service=sessions)


async def ask(words):
    message = types.Content(role="user", parts=[types.Part(text=words)])
    events = runner.run_async(user_id=WHO["user_id"], session_id="1", new_message=message)
    said = ""
    async for event in events:
        for part in (event.content and event.content.parts) or []:
            said = part.text or said
    return said


async def rewind():
    """Undoes the invocation in which the agent acted."""
    session = await sessions.get_session(session_id="1", **WHO)
    acted = next(
        event.invocation_id
        for event in reversed(session.events)
        if any(TASK.is_act(call.name, call.args) for call in event.get_function_calls())
    )
    await runner.rewind_async(user_id=WHO["user_id"], session_id="1", rewind_before_invocation_id=acted)


async def main():
    if TASK.part in ("first", "both"):
        await sessions.create_session(session_id="1", **WHO)
        if TASK.opening:
            print(await ask(TASK.opening))
        print(await ask(TASK.prompt))
    if TASK.part in ("second", "both"):
        await rewind()
        print(await ask(TASK.anew))


asyncio.run(main())
