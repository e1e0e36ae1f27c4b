"""Where the engine meets ComfyUI: its MODEL as a block generator, its VAE as a codec, its memory as the run's."""
