"""Prompts of a clip, and their text embeddings for Wan 2.1."""
