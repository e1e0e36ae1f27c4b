"""What each command may be given. Only words are imported here, so that --help answers at once.

The module of the same name in `cli` carries the command out.
"""

from . import bench, demo, doctor, generate, inspect, plan, report, study

COMMANDS = (demo, generate, report, study, bench, plan, inspect, doctor)
