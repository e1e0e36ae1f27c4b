"""SDVG Report: the route picture and `report.json` of a run, on the node and as outputs."""

from __future__ import annotations

import numpy as np
import torch
from comfy_api.latest import io, ui

from ..sdvg_core.errors import BadInput
from ..sdvg_core.report.picture import route_picture
from ..sdvg_core.report.run_report import RunReport
from ..sdvg_core.report.summary import summarise
from .host.sockets import ReportSocket
from .schema import known_inputs_only, node_schema

AUTO_LOOK = "auto"
DARK_LOOK = "dark"


class RouteReport(io.ComfyNode):
    """Shows who made each block and why."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Declare inputs and outputs."""
        return node_schema(
            node_id="SDVGRouteReport",
            is_output_node=True,
            inputs=[
                ReportSocket.Input("report"),
                io.Boolean.Input("prompt_in_report", default=False, optional=True),
                io.Combo.Input(
                    "theme",
                    options=[AUTO_LOOK, "light", DARK_LOOK],
                    default=AUTO_LOOK,
                    advanced=True,
                    optional=True,
                ),
            ],
            outputs=[io.Image.Output(display_name="picture"), io.String.Output(display_name="json")],
        )

    @classmethod
    @known_inputs_only
    def execute(cls, report: RunReport, prompt_in_report: bool = False, theme: str = AUTO_LOOK) -> io.NodeOutput:
        """Draw the picture and write the JSON. Raises `BadInput` if the preview cannot be saved."""
        report = report if prompt_in_report else report.without_prompts()
        picture = np.asarray(route_picture(report, dark=theme == DARK_LOOK).convert("RGB"), dtype=np.float32) / 255
        image = torch.from_numpy(picture)[None]
        record = report.to_json()
        # The preview must not get `cls`, or ComfyUI would write the workflow, with every prompt, into its file.
        try:
            preview = ui.PreviewImage(image).as_dict()
        except OSError as error:
            fault = f"the picture cannot be saved in ComfyUI's temp folder ({error.strerror})"
            raise BadInput(f"{fault}; make room there and run the workflow again") from None
        # `sdvg_report` is for headless use: it stays in the prompt's history.
        shown = {**preview, "text": (summarise(report),), "sdvg_report": (record,)}
        return io.NodeOutput(image, record, ui=shown)
