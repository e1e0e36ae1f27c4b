"""Whether a run fits on a device, and how: counted from sizes, before loading; and what passes and routes cost.

`choose.plan(vram, request)` returns a `Plan`, `text.plan_text(plan)` what to show. Nothing here touches a device.
"""
