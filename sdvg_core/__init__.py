"""SDVG: speculative decoding for autoregressive video. The engine; it knows nothing of ComfyUI.

Source: arXiv 2604.17397. Start reading at `speculate.py`.
"""

__version__ = "0.1.0"
