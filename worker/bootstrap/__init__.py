"""The part of orch that runs inside every Python task. It is loaded by path, as `_orch_bootstrap`.

The task's interpreter may lack orch, and its user may have a package called `worker`. Modules in here therefore
import the standard library only, and each other by relative imports. The tests import `worker.bootstrap`.
"""
