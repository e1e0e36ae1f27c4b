"""Whether a run fits on a device, how, and how long a block then takes: predicted from sizes, before loading.

`choose.plan(vram, request)` returns a `Plan`, `text.plan_text(plan)` what to show. Nothing here touches a device.
"""
