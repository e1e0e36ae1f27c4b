"""Memory plans (does a run fit on a device, and how), counted from sizes before loading; and costs of routes.

`choose.plan(vram, request)` returns a `Plan`, and `text.plan_text(plan)` its text. Nothing here touches a device.
"""
