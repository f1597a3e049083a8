"""An SSH host that lets one key in and runs what it is asked to, as a git host does (asyncssh).

Arguments: a folder, into which it writes `client` (the client's private key), `known_hosts` and
`log` (every command it ran). Says `listening PORT`.
"""

import asyncio
import os
import sys

import asyncssh

folder = sys.argv[1]


async def ran(process):
    with open(os.path.join(folder, "log"), "a") as log:
        log.write(process.command + "\n")
    child = await asyncio.create_subprocess_shell(
        process.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    process.exit(await child.wait())


async def main():
    host, client = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    path = os.path.join(folder, "client")
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        file.write(client.export_private_key())
    keys = asyncssh.import_authorized_keys(client.export_public_key().decode())
    server = await asyncssh.create_server(
        asyncssh.SSHServer,
        "127.0.0.1",
        0,
        server_host_keys=[host],
        authorized_client_keys=keys,
        process_factory=ran,
        encoding=None,
    )
    port = server.get_port()
    with open(os.path.join(folder, "known_hosts"), "w") as file:
        file.write(f"[127.0.0.1]:{port} {host.export_public_key().decode()}")
    print("listening", port, flush=True)
    await server.wait_closed()


asyncio.run(main())
