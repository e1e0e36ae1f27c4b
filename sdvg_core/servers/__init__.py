"""Many videos by running ComfyUI servers: one workflow, many prompts and seeds, over their HTTP interface."""
