"""Turn a prompt into the text embedding that Wan 2.1 is conditioned on."""

from .prompts import clean_prompt
from .umt5 import TextEncoder, load_umt5
from .umt5_weights import umt5_to_comfy

__all__ = ["TextEncoder", "clean_prompt", "load_umt5", "umt5_to_comfy"]
