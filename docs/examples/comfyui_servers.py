"""Many prompts over several ComfyUI servers: a video of every line of prompts.txt, the line's number its seed."""

import http.client
import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SERVERS = ["http://127.0.0.1:8188", "http://10.0.0.5:8188"]
PROMPTS = Path("prompts.txt").read_text().splitlines()
WORKFLOW = Path("workflows/api/sdvg_pocket_demo.json").read_text()
FILES = {number: Path(f"out/{number:04d}.mp4") for number, _ in enumerate(PROMPTS, 1)}


def ask(server, path, body=None):
    request = urllib.request.Request(server + path, body and json.dumps(body).encode())
    return urllib.request.urlopen(request, timeout=60).read()


def make(server, text, seed):
    prompt = json.loads(WORKFLOW)
    prompt["1"]["inputs"]["prompt"] = text
    prompt["3"]["inputs"]["seed"] = seed
    run = queued = json.loads(ask(server, "/prompt", {"prompt": prompt, "client_id": "me"}))["prompt_id"]
    while not (history := json.loads(ask(server, f"/history/{run}"))):
        if run not in queued:
            raise ConnectionError("it has forgotten the prompt")
        time.sleep(0.5)
        queued = ask(server, "/queue").decode()
    if history[run]["status"]["status_str"] != "success":
        raise ValueError(history[run]["status"]["messages"][-1])
    [video] = history[run]["outputs"]["5"]["images"]
    return ask(server, "/view?" + urllib.parse.urlencode(video))


def work(server):
    """Make one video after the other, until all are made or the server is gone."""
    while left:
        try:
            number = todo.popleft()
        except IndexError:
            time.sleep(0.5)  # another server has the last ones, and may yet be gone
            continue
        try:
            video = make(server, PROMPTS[number - 1], number)
        except (urllib.error.HTTPError, ValueError) as error:
            print(f"{server} cannot make {FILES[number]}: {error!r}", flush=True)
        except (OSError, http.client.HTTPException) as error:
            todo.append(number)
            print(f"{server} is gone: {error}", flush=True)
            return
        else:
            FILES[number].write_bytes(video)
            print(f"{server} made {FILES[number]}", flush=True)
        left.remove(number)


left = {number for number, file in FILES.items() if not file.exists()}
todo = deque(sorted(left))
Path("out").mkdir(exist_ok=True)
with ThreadPoolExecutor(len(SERVERS)) as pool:
    list(pool.map(work, SERVERS))
sys.exit(", ".join(f"{file} is missing" for file in FILES.values() if not file.exists()) or 0)
