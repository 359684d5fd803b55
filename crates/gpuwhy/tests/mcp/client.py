# SPDX-License-Identifier: Apache-2.0
"""The Python SDK's MCP client, for the tests: a line of JSON says what to do, a line of JSON says what came of it.

client.py auto|legacy stdio COMMAND...
client.py auto|legacy http URL [CERTIFICATE [TOKEN]]

What is right is for the test to say; this only does what any program with this SDK does.
"""

import json
import ssl
import sys

import anyio
import httpx2
import mcp.types as types
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client


def plain(model):
    return model.model_dump(mode="json", by_alias=True, exclude_unset=True)


async def everything(method, key):
    """All pages of a list."""
    entries, cursor = [], None
    while True:
        page = plain(await method(cursor=cursor))
        entries += page[key]
        cursor = page.get("nextCursor")
        if cursor is None:
            return entries


async def is_valid(client, name, content):
    """Whether the SDK takes this for an answer of the tool."""
    result = types.CallToolResult(content=[], structured_content=content)
    try:
        await client.session.validate_tool_result(name, result)
    except RuntimeError:
        return False
    return True


async def do(client, asked):
    match asked["do"]:
        case "about":
            about = {"protocol": client.protocol_version, "instructions": client.instructions}
            return about | {"server": plain(client.server_info)}
        case "tools":
            return await everything(client.list_tools, "tools")
        case "call":
            return plain(await client.call_tool(asked["name"], asked["arguments"]))
        case "is_valid":
            return await is_valid(client, asked["name"], asked["content"])
        case "resources":
            return await everything(client.list_resources, "resources")
        case "read":
            return plain(await client.read_resource(asked["uri"]))
        case "prompts":
            return await everything(client.list_prompts, "prompts")
        case "prompt":
            return plain(await client.get_prompt(asked["name"], asked["arguments"]))


def root_of(error):
    """The innermost error: groups of tasks wrap them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


# What the server said last, which not every error tells.
statuses = []


async def note_status(response):
    statuses.append(response.status_code)


def say(what):
    print(json.dumps(what, ensure_ascii=False), flush=True)


async def serve_test(server, mode):
    async with Client(server, mode=mode) as client:
        say({"ok": "connected"})
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            try:
                say({"ok": await do(client, json.loads(line))})
            except Exception as error:
                say({"failed": root_of(error)})


async def main(mode, transport, *rest):
    if transport == "stdio":
        return await serve_test(StdioServerParameters(command=rest[0], args=list(rest[1:])), mode)
    url, certificate, token = (*rest, None, None)[:3]
    verify = ssl.create_default_context(cafile=certificate) if certificate else True
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    # Whether the server can be reached is not for this machine's proxies to say.
    settings = {"timeout": 60, "trust_env": False, "event_hooks": {"response": [note_status]}}
    async with httpx2.AsyncClient(verify=verify, headers=headers, **settings) as http:
        await serve_test(streamable_http_client(url, http_client=http), mode)


try:
    anyio.run(main, *sys.argv[1:])
except Exception as error:
    say({"failed": f"{root_of(error)} (HTTP {statuses[-1:]})"})
    sys.exit(1)
