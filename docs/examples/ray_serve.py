"""Videos for a browser, block by block, with Ray Serve.

pip install "ray[serve]", then in this folder: serve run ray_serve:app, and open http://127.0.0.1:8000.
"""

import asyncio
import base64
import io
import json

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from PIL import Image
from ray import serve

from sdvg_core import BadInput, Busy, Streamer, VideoRequest, pocket_options, trained_set

PAGE = """<!DOCTYPE html>
<meta charset="utf-8"><title>SDVG</title>
<form><input name="prompt" size="60" value="a big yellow ball runs right and down from the middle over night">
<button>Make</button></form>
<img width="256" height="256" alt=""><pre></pre>
<script>
const [form, picture, lines] = ["form", "img", "pre"].map((name) => document.querySelector(name));
const shown = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

async function play(line) {
  const block = JSON.parse(line);
  lines.append(block.text + "\\n");
  for (const jpeg of block.frames) {
    picture.src = "data:image/jpeg;base64," + jpeg;
    await shown(1000 / 16);
  }
}

form.onsubmit = async (event) => {
  event.preventDefault();
  lines.textContent = "";
  const answer = await fetch("blocks?" + new URLSearchParams(new FormData(form)));
  if (!answer.ok) return lines.append((await answer.json()).error);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const whole = (text + part.value).split("\\n");
    text = whole.pop();
    for (const line of whole) await play(line);
  }
};
</script>"""

api = FastAPI()


def jpeg(frame):
    file = io.BytesIO()
    Image.fromarray((255 * frame).round().byte().cpu().numpy()).save(file, "JPEG", quality=90)
    return base64.b64encode(file.getvalue()).decode()


def next_line(stream):
    """Make a block, and return it as a line of JSON; None at the end."""
    block = next(stream, None)
    return block and json.dumps({"text": str(block), "frames": [jpeg(frame) for frame in block.frames]}) + "\n"


async def lines_of(stream):
    try:
        while line := await asyncio.to_thread(next_line, stream):
            yield line
    finally:  # also when the browser went away
        await asyncio.to_thread(stream.close)


@serve.deployment(max_ongoing_requests=4, ray_actor_options={"num_gpus": 0})  # 1 for real models
@serve.ingress(api)
class Videos:
    def __init__(self):
        self.streamer = Streamer(trained_set(), pocket_options())

    @api.get("/")
    async def page(self):
        return HTMLResponse(PAGE)

    @api.get("/blocks")
    async def blocks(self, prompt: str, seed: int = 42):
        try:
            request = VideoRequest(blocks=4, seed=seed, width=64, height=64)
            stream = await asyncio.to_thread(self.streamer.stream, request, prompt)
        except BadInput as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        except Busy as error:
            return JSONResponse({"error": str(error)}, status_code=503)
        return StreamingResponse(lines_of(stream), media_type="application/x-ndjson")


app = Videos.bind()
