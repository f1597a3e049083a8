"""What every driver needs: the task, which is the first argument, and the tools of its service.

The tools post over HTTPS as anybody's would. They know nothing of a fence.
"""

import datetime
import json
import os
import subprocess
import sys

import httpx


class Task:
    """The task as JSON in the first argument.

    part      first, second (a new process), both (one process that goes back), or told (through pipes)
    restore   how the agent forgets
    kind      which service: bank, cloud, approval
    act       the tool that cannot be undone
    act_path  the path of its request, by which a typed command is known
    opening   what comes before the action, as a turn of its own; may be nothing
    prompt    what the agent is asked
    again     what a restored agent is told
    redirects whether `again` sends it after something else
    model     URL of the model
    service   URL of the service
    home      a directory for what the agent keeps
    transport how the service is reached: rest, mcp_http, mcp_stdio, shell
    stdio     the command that serves MCP over standard input and output
    patience  seconds after which a tool gives up
    refresh_token what the first access token is got with, where the service wants one
    """

    def __init__(self):
        self.__dict__.update(json.loads(sys.argv[1]))

    @property
    def anew(self):
        """What is said when the conversation begins anew: a redirection, or the same words again."""
        return self.again if self.redirects else self.prompt

    def at(self, path):
        return f"{self.home}/{path}"

    def tools(self):
        return [shell_command] if self.transport == "shell" else TOOLS[self.kind]

    @property
    def over_mcp(self):
        return self.transport in ("mcp_http", "mcp_stdio")

    def is_act(self, name, arguments):
        """Whether a call is the one that cannot be undone."""
        if name == "shell_command":
            return self.act_path in dict(arguments or {}).get("command", "")
        return name.endswith(self.act)


TASK = Task()
# What is open when a process is saved is a matter of its own.
LIMITS = httpx.Limits(max_keepalive_connections=0 if TASK.part == "told" else 20)
CLIENT = httpx.Client(timeout=TASK.patience, limits=LIMITS)


class Tokens:
    """Access tokens as an SDK keeps them: in a file of the user's, whatever becomes of a conversation.
    One that has expired is refreshed, and the refresh token with it."""

    FILE = TASK.at("tokens.json")

    @property
    def kept(self):
        if not os.path.exists(self.FILE):
            return {"access_token": "expired", "refresh_token": TASK.refresh_token}
        with open(self.FILE) as file:
            return json.load(file)

    def refresh(self):
        wish = {"grant_type": "refresh_token", "refresh_token": self.kept["refresh_token"], "client_id": "assistant"}
        answer = CLIENT.post(TASK.service + "/oauth/token", data=wish)
        if answer.is_success:
            with open(self.FILE + ".new", "w") as file:
                json.dump({name: answer.json()[name] for name in ("access_token", "refresh_token")}, file)
            os.replace(self.FILE + ".new", self.FILE)

    def send(self, method, path, **more):
        def attempt():
            headers = {"Authorization": "Bearer " + self.kept["access_token"]}
            return CLIENT.request(method, TASK.service + path, headers=headers, **more)

        answer = attempt()
        if answer.status_code == 401:
            self.refresh()
            answer = attempt()
        return answer


TOKENS = Tokens() if TASK.refresh_token else None


def send(method, path, **more):
    try:
        answer = TOKENS.send(method, path, **more) if TOKENS else CLIENT.request(method, TASK.service + path, **more)
    except httpx.TimeoutException:
        return "Error: the request timed out"
    return answer.text if answer.is_success else f"Error {answer.status_code}: {answer.text}"


def get(path):
    return send("GET", path)


def post(path, body):
    return send("POST", path, json=body)


def shell_command(command: str) -> str:
    """Runs a command in a shell.

    Args:
        command: the command
    """
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    failed = f"\nexit code {ended.returncode}" if ended.returncode else ""
    return ended.stdout + ended.stderr + failed


def check_balance(account_id: str = "main") -> str:
    """Tells what is left on the account.

    Args:
        account_id: which account; there is only one
    """
    return get("/v1/balance")


def transfer(to: str, amount: int, ref: str) -> str:
    """Transfers money.

    Args:
        to: who gets the money
        amount: how much, in EUR
        ref: unique for every transfer
    """
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    body = {"to": to, "amount": amount, "currency": "EUR", "reference": ref, "requested_at": now}
    return post("/v1/transfers", body)


def read_statement(page: int) -> str:
    """Reads a page of the statement.

    Args:
        page: which page, from 1 on
    """
    return get(f"/v1/statement?page={page}")


def check_quota(resource_type: str = "server") -> str:
    """Tells how many servers are allowed, and how many run.

    Args:
        resource_type: which kind of resource; there is only one
    """
    return get("/v1/quota")


def create_server(spec: str, client_token: str) -> str:
    """Makes a server, which costs until it is deleted.

    Args:
        spec: what kind of server
        client_token: unique for every server
    """
    return post("/v1/servers", {"spec": spec, "client_token": client_token})


def request_approval(operation: str, target: str, reason: str = "") -> str:
    """Asks for a single-use approval token.

    Args:
        operation: what is to be done
        target: to whom
        reason: why
    """
    return post("/v1/approvals", {"operation": operation, "target": target, "reason": reason})


def delete_customer_data(token: str, customer_id: str) -> str:
    """Deletes all data of a customer. Needs an approval token.

    Args:
        token: the approval
        customer_id: whose data
    """
    return post("/v1/deletions", {"token": token, "customer_id": customer_id})


def execute_payment(token: str, vendor: str, amount: int) -> str:
    """Pays a vendor. Needs an approval token.

    Args:
        token: the approval
        vendor: who gets the money
        amount: how much, in EUR
    """
    return post("/v1/payments", {"token": token, "vendor": vendor, "amount": amount})


TOOLS = {
    "bank": [check_balance, read_statement, transfer],
    "cloud": [check_quota, create_server],
    "approval": [request_approval, delete_customer_data, execute_payment],
}
