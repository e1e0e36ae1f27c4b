"""What each command may be given. Only words are imported here, so that --help answers at once.

The module of the same name in `cli` carries the command out.
"""

from . import demo, doctor, generate, inspect, plan, queue, report

COMMANDS = (demo, generate, queue, report, plan, inspect, doctor)
