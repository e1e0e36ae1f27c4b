"""Adapters between the engine and ComfyUI: MODEL to block generator, VAE to codec, memory management."""
