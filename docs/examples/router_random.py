"""A router of your own: a coin decides who makes a block, and no draft is scored. A gate must beat that."""

from random import Random

from sdvg_core import Streamer, VideoRequest, pocket_options, trained_set


class Coin:
    needs_scorer = False

    def __init__(self, rate, seed=0):
        self.rate, self.seed, self.key = rate, seed, f"{rate} {seed}"

    def keep(self, index, score):  # a pure function of the block's number: it is asked again when a run is resumed
        return Random(f"{self.seed} {index}").random() < self.rate


if __name__ == "__main__":
    streamer = Streamer(trained_set(), pocket_options(), router=Coin(rate=0.7))
    request = VideoRequest(blocks=6, width=64, height=64)
    for block in streamer.stream(request, "a big blue ball drifts right from the left over sand"):
        print(block)
