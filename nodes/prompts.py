"""SDVG Prompt Schedule: which prompt applies from which block on."""

from __future__ import annotations

from comfy_api.latest import io

from ..sdvg_core.errors import BadInput
from .known import known_inputs_only, node_schema
from .sockets import PromptEntry, Prompts


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
                io.Conditioning.Input("conditioning", tooltip="The encoded prompt."),
                io.String.Input(
                    "text",
                    multiline=True,
                    tooltip="The same prompt as text. The quality router reads its first 35 tokens.",
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
            raise BadInput(
                f"the prompt before this one starts at block {schedule[-1].index + 1}, but from_block is "
                f"{from_block}; raise from_block or swap the two nodes"
            )
        return io.NodeOutput((*schedule, entry))
