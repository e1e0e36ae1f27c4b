"""A drafter of your own around any nn.Module, here one that blurs noise: one step, three latent frames."""

from torch import nn

from sdvg_core import Generated, Streamer, VideoRequest, pocket_options, trained_set


class Drafter:
    name, block_frames, latent_channels, anchor_horizon = "blur", 3, 16, 0
    timesteps = first_timesteps = (1000.0,)

    def __init__(self, module):
        self.module = module.requires_grad_(False)

    def generate(self, call):  # one estimate per timestep, b c t h w like the noise; call.history: what was made
        return Generated((self.module(call.noise.draw(call.span, 0)),))


if __name__ == "__main__":
    streamer = Streamer(trained_set(), pocket_options(), drafter=Drafter(nn.AvgPool3d(3, 1, 1)))
    request = VideoRequest(blocks=4, width=64, height=64)
    for block in streamer.stream(request, "a big blue ball drifts right from the left over sand"):
        print(block)
