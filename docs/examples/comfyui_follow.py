"""Queue a workflow on a ComfyUI server, and print what happened to each block as it is finished."""

import asyncio
import json
from pathlib import Path

import aiohttp

SERVER = "127.0.0.1:8188"


async def follow(prompt):
    address = f"ws://{SERVER}/ws?clientId=me"
    async with aiohttp.ClientSession() as session, session.ws_connect(address) as socket:
        body = {"prompt": prompt, "client_id": "me"}
        async with session.post(f"http://{SERVER}/prompt", json=body) as answer:
            prompt_id = (await answer.json())["prompt_id"]
        async for message in socket:
            if message.type != aiohttp.WSMsgType.TEXT:
                continue  # a preview picture
            event = json.loads(message.data)
            if event["type"] == "sdvg.block":
                print(event["data"]["text"])
            elif event["type"].startswith("execution_") and event["data"]["prompt_id"] == prompt_id:
                print(event["type"])
                if event["type"] not in ("execution_start", "execution_cached"):
                    return


prompt = json.loads(Path("workflows/api/sdvg_pocket_demo.json").read_text())
prompt["3"]["inputs"] |= {"seed": 8, "blocks": 4}
asyncio.run(follow(prompt))
