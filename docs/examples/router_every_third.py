"""A router of your own: the large model makes every third block, and no draft is looked at."""

from sdvg_core import Streamer, VideoRequest, pocket_options, trained_set


class EveryThird:
    key = "1"  # of this version: change it when the answers change
    needs_scorer = False

    def keep(self, index, score):
        return index % 3 != 0


if __name__ == "__main__":
    streamer = Streamer(trained_set(), pocket_options(), router=EveryThird())
    request = VideoRequest(blocks=6, width=64, height=64)
    for block in streamer.stream(request, "a big blue ball drifts right from the left over sand"):
        print(block)
