"""Run a Python module on a host of the lab: `python -m tests.lab.inside NAMESPACE MODULE ARGUMENTS`.

The process stays the one that was started, so a signal sent to it reaches the module.
"""

import runpy
import sys

from tests.lab.net import enter

if __name__ == "__main__":
    _, namespace, module, *arguments = sys.argv
    enter(namespace)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
