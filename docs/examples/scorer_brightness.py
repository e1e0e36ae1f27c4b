"""A scorer of your own: a frame is as good as it is bright. The request's tau is then in your scorer's units."""

from sdvg_core import Gate, Route, Streamer, VideoRequest, pocket_options, trained_set


class Brightness:
    key = "1"  # of this version: change it when the scores change

    def score(self, frames, prompt):  # b f c h w in [0, 1] -> one number per frame
        return frames.float().mean(dim=(0, 2, 3, 4)).cpu()

    def describe(self):
        return {"name": "brightness"}


if __name__ == "__main__":
    streamer = Streamer(trained_set(), pocket_options(), scorer=Brightness())
    request = VideoRequest(blocks=4, width=64, height=64, route=Route(Gate(0.6)))
    for block in streamer.stream(request, "a big blue ball drifts right from the left over sand"):
        print(block)
