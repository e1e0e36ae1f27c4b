"""A mistake for every promise of docs/testing.md, with the test that sees it. Nothing here is a copy of code.

A mistake replaces one function or value of the product by what someone might have written. What is in `host` needs
ComfyUI, and is planted by tests/comfyui/test_host_mistakes.py.
"""
