"""A ComfyUI pack of one file: a router and a scorer for SDVG. To try it, copy the folder into custom_nodes."""

from comfy_api.latest import ComfyExtension, io

Router, Scorer = io.Custom("SDVG_ROUTER"), io.Custom("SDVG_SCORER")


class Brightness:
    key = "1"  # of this version: change it when the scores change

    def score(self, frames, prompt):  # b f c h w in [0, 1] -> one number per frame
        return frames.float().mean(dim=(0, 2, 3, 4)).cpu()

    def describe(self):
        return {"name": "brightness"}


class EveryNth:
    needs_scorer = True

    def __init__(self, every, least, scorer):
        self.every, self.least, self.scorer, self.key = every, least, scorer, f"{every} {least}"

    def keep(self, index, score):  # block from 0, score of the draft's worst frame
        return index % self.every != 0 and score >= self.least


class BrightnessScorer(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ExampleBrightness", category="SDVG/examples", inputs=[], outputs=[Scorer.Output()]
        )

    @classmethod
    def execute(cls):
        return io.NodeOutput(Brightness())


class EveryNthRouter(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        inputs = [
            io.Int.Input("every", default=3, min=2),
            io.Float.Input("least", default=0.5),
            Scorer.Input("scorer"),
        ]
        return io.Schema(
            node_id="ExampleEveryNth", category="SDVG/examples", inputs=inputs, outputs=[Router.Output()]
        )

    @classmethod
    def execute(cls, every, least, scorer):
        return io.NodeOutput(EveryNth(every, least, scorer))


class Examples(ComfyExtension):
    async def get_node_list(self):
        return [BrightnessScorer, EveryNthRouter]


async def comfy_entrypoint():
    return Examples()
