"""Queue a workflow on a ComfyUI server, wait for it, and fetch the video and the report. Standard library only."""

import json
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

SERVER = "http://127.0.0.1:8188"


def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(SERVER + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return answer.read()


def make(prompt):
    """Queue a prompt, wait for it, and return the outputs of its output nodes, by node class."""
    prompt_id = json.loads(ask("/prompt", {"prompt": prompt, "client_id": "me"}))["prompt_id"]
    while not (history := json.loads(ask(f"/history/{prompt_id}"))):
        time.sleep(0.5)
    entry = history[prompt_id]
    for event, details in entry["status"]["messages"]:
        if event in ("execution_error", "execution_interrupted"):
            sys.exit(details.get("exception_message", "interrupted"))
    return {prompt[key]["class_type"]: output for key, output in entry["outputs"].items()}


prompt = json.loads(Path("workflows/api/sdvg_pocket_demo.json").read_text())
prompt["1"]["inputs"]["prompt"] = "a small yellow cross drifts down from the top over sea"
prompt["2"]["inputs"]["policy.tau"] = -1.0
prompt["3"]["inputs"]["seed"] = 7

outputs = make(prompt)
[video] = outputs["SaveVideo"]["images"]
Path("clip.mp4").write_bytes(ask("/view?" + urllib.parse.urlencode(video)))

report = json.loads(outputs["SDVGRouteReport"]["sdvg_report"][0])
print(report["totals"]["acceptance_rate"])
for block in report["blocks"]:
    print(block["index"], block["author"], block["reason_text"], block["score"])
