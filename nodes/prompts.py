"""SDVG Prompt and SDVG Prompt Schedule: encode prompts, and choose the blocks where they begin.

ComfyUI's own conditioning does not hold the text, which the reward model needs; ours carries it along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comfy.sd import CLIP
from comfy_api.latest import io

from ..sdvg_core.errors import BadInput
from ..sdvg_core.text.prompts import read_prompt
from .host.conditioning import with_lines, with_text
from .host.sockets import PromptEncoder, PromptEntry, PromptsSocket
from .schema import known_inputs_only, node_schema


class Prompt(io.ComfyNode):
    """Encodes a prompt."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Declare inputs and outputs."""
        return node_schema(
            node_id="SDVGPrompt",
            search_aliases=["text encode", "CLIP Text Encode", "positive"],
            inputs=[
                io.Clip.Input("clip"),
                io.String.Input("text", default="", multiline=True, dynamic_prompts=True),
            ],
            outputs=[io.Conditioning.Output(display_name="conditioning")],
        )

    @classmethod
    @known_inputs_only
    def execute(cls, clip: CLIP, text: str) -> io.NodeOutput:
        """Encode each prompt as CLIP Text Encode does. Raises `BadInput` if it is not text, unless it is empty."""

        def encoded(line: str) -> list[list[Any]]:
            return with_text(clip.encode_from_tokens_scheduled(clip.tokenize(line)), line, encoder=encoder)

        encoder = PromptEncoder(encoded, patcher=getattr(clip, "patcher", None))  # another pack's may have none

        lines = read_prompt(text) if text.strip() else None
        return io.NodeOutput(with_lines(lines, encoded) if lines and lines.changes else encoded(text))


class PromptScheduleNode(io.ComfyNode):
    """Adds one prompt to a schedule; chain several nodes for several changes."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Declare inputs and outputs."""
        return node_schema(
            node_id="SDVGPromptSchedule",
            search_aliases=["prompt travel", "prompt switch"],
            inputs=[
                io.Int.Input("from_block", default=4, min=2, max=4096),
                io.Conditioning.Input("conditioning"),
                io.String.Input("text", default="", multiline=True, advanced=True),
                PromptsSocket.Input("schedule", optional=True),
            ],
            outputs=[PromptsSocket.Output(display_name="schedule")],
        )

    @classmethod
    @known_inputs_only
    def execute(
        cls, from_block: int, conditioning: Sequence[Any], text: str, schedule: tuple[PromptEntry, ...] = ()
    ) -> io.NodeOutput:
        """Append the prompt to the schedule. Raises `BadInput` unless it begins after the last one."""
        entry = PromptEntry(from_block - 1, conditioning, text)
        if schedule and entry.index <= schedule[-1].index:
            before = schedule[-1].index + 1
            raise BadInput(
                f"from_block is {from_block}, but the prompt before it starts at block {before}; raise from_block, or swap the nodes"
            )
        return io.NodeOutput((*schedule, entry))
