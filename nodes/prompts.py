"""SDVG Prompt and SDVG Prompt Schedule: what the video shows, and from which block on."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..sdvg_core.errors import BadInput
from ..sdvg_core.text.prompts import read_prompt
from .host.conditioning import with_lines, with_text
from .known import known_inputs_only, node_schema
from .sockets import PromptEntry, Prompts


class Prompt(io.ComfyNode):
    """Encodes a prompt; its conditioning carries the text along, for the scorer."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Declare inputs and outputs."""
        return node_schema(
            node_id="SDVGPrompt",
            display_name="SDVG Prompt",
            description="Encodes the prompt. The conditioning carries its text, so one wire tells the models and the "
            "scorer the same.",
            search_aliases=["text encode", "CLIP Text Encode", "positive"],
            inputs=[
                io.Clip.Input("clip", tooltip="umt5-xxl from Load CLIP, with type wan."),
                io.String.Input(
                    "text",
                    default="",
                    multiline=True,
                    dynamic_prompts=True,
                    tooltip="What the video shows. A line '5: a storm' changes it from block 5 on, '7 strength 0.6:' how "
                    "strongly a clip is restyled. The text encoder reads 512 tokens, the scorer the first 35.",
                ),
            ],
            outputs=[
                io.Conditioning.Output(
                    display_name="conditioning", tooltip="The encoded prompt with its text, for 'positive'."
                )
            ],
        )

    @classmethod
    @known_inputs_only
    def execute(cls, clip, text) -> io.NodeOutput:
        """Encode each prompt as CLIP Text Encode does. Raises `BadInput` if it is no text, unless it is empty."""

        def encoded(one: str) -> list[list[Any]]:
            return with_text(clip.encode_from_tokens_scheduled(clip.tokenize(one)), one)

        if not text.strip():
            return io.NodeOutput(encoded(text))
        lines = read_prompt(text)
        if not lines.changes:
            return io.NodeOutput(encoded(text))
        return io.NodeOutput(with_lines(lines, encoded))


class PromptSchedule(io.ComfyNode):
    """Adds one prompt to a schedule; chain several nodes for several changes."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Declare inputs and outputs."""
        return node_schema(
            node_id="SDVGPromptSchedule",
            display_name="SDVG Prompt Schedule",
            description="Switches to another prompt at a block. The blocks before it stay unchanged, bit for bit.",
            search_aliases=["prompt travel", "prompt switch"],
            inputs=[
                io.Int.Input(
                    "from_block",
                    default=4,
                    min=2,
                    max=4096,
                    tooltip="The first block with this prompt. Blocks count from 1, and the blocks of a continued "
                    "clip count too. Block 1 has the sampler's prompt.",
                ),
                io.Conditioning.Input("conditioning", tooltip="The prompt, from an SDVG Prompt of its own."),
                io.String.Input(
                    "text",
                    default="",
                    multiline=True,
                    advanced=True,
                    tooltip="Leave it empty after SDVG Prompt. For another text encoder: the same prompt as text, for the "
                    "scorer, which reads its first 35 tokens.",
                ),
                Prompts.Input("schedule", optional=True, tooltip="The prompts before this one."),
            ],
            outputs=[
                Prompts.Output(
                    display_name="schedule",
                    tooltip="All prompts so far, for the sampler or the next of these nodes.",
                )
            ],
        )

    @classmethod
    @known_inputs_only
    def execute(cls, from_block, conditioning, text, schedule=()) -> io.NodeOutput:
        """Append the entry."""
        entry = PromptEntry(from_block - 1, conditioning, text)
        if schedule and entry.index <= schedule[-1].index:
            before = schedule[-1].index + 1
            raise BadInput(
                f"from_block is {from_block}, but the prompt before starts at block {before}; raise it or swap the nodes"
            )
        return io.NodeOutput((*schedule, entry))
