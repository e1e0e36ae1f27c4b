"""Memory plans (does a run fit on a device, and how), counted from sizes before loading; and costs of routes.

`plan.plan(vram, request)` returns a `Plan`, and `plan.plan_text(plan)` its text. Nothing here touches a device.
"""
