"""SDVG Prompt Schedule: from which block which prompt holds."""

from __future__ import annotations

from comfy_api.latest import io

from ..sdvg_core.errors import BadInput
from .sockets import CATEGORY, PromptEntry, Prompts


class PromptSchedule(io.ComfyNode):
    """Adds one prompt to a schedule; chain several for several changes."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Declare inputs and outputs."""
        return io.Schema(
            node_id="SDVGPromptSchedule",
            display_name="SDVG Prompt Schedule",
            category=CATEGORY,
            description="From a block on, another prompt. Blocks before it stay as they are, bit for bit.",
            search_aliases=["prompt travel", "prompt switch"],
            inputs=[
                io.Int.Input(
                    "from_block",
                    default=3,
                    min=1,
                    max=4096,
                    tooltip="The first block that shows this prompt. Blocks count from 0; block 0 has the sampler's prompt.",
                ),
                io.Conditioning.Input("conditioning", tooltip="The prompt as the text encoder made it."),
                io.String.Input(
                    "text",
                    multiline=True,
                    tooltip="The same prompt as text. The quality router reads its first 35 tokens.",
                ),
                Prompts.Input("schedule", optional=True, tooltip="The prompts before this one."),
            ],
            outputs=[Prompts.Output(display_name="schedule")],
        )

    @classmethod
    def execute(cls, from_block, conditioning, text, schedule=()) -> io.NodeOutput:
        """Append the entry."""
        if schedule and from_block <= schedule[-1].from_block:
            raise BadInput(
                f"expected a block after {schedule[-1].from_block}, where the prompt before begins, but got "
                f"{from_block}; raise from_block or swap the two nodes"
            )
        return io.NodeOutput((*schedule, PromptEntry(from_block, conditioning, text)))
