"""What orch adds to every Python task: brought into the command's own interpreter by path, as `_orch_bootstrap`.

That interpreter need not have orch (or anything but the standard library), and its user may have a module or
package of their own called `worker`. So everything in here imports the standard library only, and its own parts
by relative imports; the built-in program and the tests import it as `worker.bootstrap`.
"""
