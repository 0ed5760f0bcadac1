"""Values that an option refuses, each with the sentence that every source of the option gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Text that a file cannot hold.
NOT_UTF8 = "\udcff"


@dataclass(frozen=True)
class Refused:
    """`says` begins the sentence after the source; " ... " is any text. `beside`: the other options of the request.

    A text is the value on a command line, in a variable, in orch.toml and in Python, where whole numbers are numbers.
    A value of another type exists in orch.toml and in Python only.
    """

    option: str
    value: object
    says: str
    beside: Mapping[str, object]


def row(option: str, value: object, says: str, **beside: object) -> Refused:
    return Refused(option, value, says, beside)


_SUMMED = "means how the gradients of several workers are summed, which dtensor does not use"
_SLURM_ENDS = "orch has to learn when"
_PRIVATE = "a private network exists on one machine only"

_RANGE: dict[str, object] = {"workers": "2..4", "hosts": "a:2,b:2"}
_WIDE: dict[str, object] = {"workers": "2..4", "hosts": "a:9,b:9", "chief": "separate"}
_MIRRORED: dict[str, object] = {"strategy": "mirrored"}

REFUSALS = (
    # Numbers of tasks.
    row("workers", "0", "must be at least 1, not 0"),
    row("workers", "-1", "must be at least 1, not -1"),
    row("workers", "two", '"two" is not a whole number'),
    row("workers", True, "true is not a whole number"),
    row("workers", 1.5, "1.5 is not a whole number"),
    row("workers", int("9" * 30), "a number of 100 bits is too big"),
    row("workers", "10000", "a job has at most 4,000 tasks, not 10,000"),
    row("workers", "0", "must be at least 1, not 0: parameter servers need a worker", ps=1),
    row("workers", "0", "must be at least 1, not 0: without --chief separate, a worker is the chief"),
    row("workers", "4..2", '"4..2" begins with the larger number; write 2..4'),
    row("workers", "0..2", '"0..2": a run has at least 1 worker; write 1..2'),
    row("workers", "2..", '"2.." is not a range; write the fewest and the most workers: 2..4'),
    row("workers", "-1..4", '"-1..4" is not a range'),
    row("workers", "2..9999", "a job has at most 4,000 tasks, not 9,999"),
    row("workers", "2..4", "2..4: with parameter servers ... restarts alone", ps=1, hosts="a:9,b:9"),
    row("workers", "2..4", "2..4: the mesh batch=4,model=1 ... write that", mesh="batch=4", hosts="a,b"),
    row("workers", "2..4", "mirrored runs as one process", strategy="mirrored", replicas=2),
    row("ps", "-1", "must be at least 0, not -1"),
    row("ps", "2700", "a job has at most 4,000 tasks, not 4,001", workers=1300),
    row("chief", "first", '"first" is not known; write separate or worker0'),
    row("chief", "worker0", "parameter-server has a chief of its own", strategy="parameter-server"),
    row("evaluator", "maybe", '"maybe" is neither true nor false'),
    # The command, its name, and its places.
    row("command", "echo 'a", '"echo \'a" cannot be split into words: No closing'),
    row("command", 3, "3 is not a command; write a text or a list of texts"),
    row("command", ["a", 3], "3 is not text; put each word"),
    row("command", "no-such-program", "command not found: no-such-program"),
    row("command", "no_such.py", "script not found: no_such.py"),
    row("command", "python3 no_such.py", "script not found: no_such.py"),
    row("name", "a b", '"a b" is not a name; use 1 to 63 of'),
    row("name", "a/b", '"a/b" is not a name'),
    row("name", 3, "3 is not text; put it in quotes"),
    row("cwd", "/no/such/place", "/no/such/place does not exist; name an existing directory"),
    row("cwd", "/dev/null", "/dev/null is not a directory"),
    row("cwd", "/dev/null/x", "/dev/null/x does not exist"),
    row("cwd", "~nobody-of-that-name/x", '"~nobody-of-that-name/x": Could not determine home'),
    row("cwd", 3, "3 is not a path; put it in quotes"),
    row("log_dir", "", "the path is empty"),
    row("log_dir", "a\0b", "'a\\x00b' contains a NUL"),
    row("log_dir", NOT_UTF8, "'\\udcff' contains a NUL or bytes that are not UTF-8"),
    row("env", "A", '"A" is not NAME=VALUE'),
    row("env", "ORCH_TASK=x", "ORCH_TASK is set by orch for each task and cannot be given"),
    row("env", 3, "3 is not a table; write env = {"),
    row("env", {"A": []}, "A is []; a variable's value is text"),
    # Times.
    row("grace", "5x", '"5x" is not a duration; write 30, 1.5, 500ms'),
    row("grace", "-1", '"-1" is negative'),
    row("grace", -1, "-1 is not a length of time"),
    row("grace", float("nan"), "nan is not a length of time"),
    row("grace", [], "[] is not a duration"),
    row("timeout", "0", "a time-out of 0 would end the run at once; leave it out"),
    row("start_timeout", "0", "a time-out of 0 would end the run at once; write off"),
    row("stall_timeout", "soon", '"soon" is not a duration'),
    row("link_timeout", "1", "must be at least 3s, not 1s", hosts="a"),
    # Failures.
    row("on_failure", "retry", '"retry" is not known; did you mean "restart"?'),
    row("on_failure", "abort", "abort never starts ... --workers 2..4 asks for; leave it out", **_RANGE),
    row("max_restarts", "-1", "must be between 0 and"),
    row("stop_on_nan", "perhaps", '"perhaps" is neither true nor false'),
    row("stop_on_nan", 2, "2 is neither true nor false"),
    row("expect_cluster", True, "this run has no cluster of several tasks; use --workers 2 or more"),
    row("expect_cluster", True, "this run has no cluster of several tasks", evaluator=True),
    row("expect_cluster", True, "true is not a Python program", workers=2, command=["true"]),
    row("chaos", "kill worker:2 at ready", "there is no worker:2 in this run", workers=2),
    row("chaos", "kill ps:0 at ready", "there is no ps:0 in this run"),
    row("chaos", "kill 0 at noon", 'at character 11, "noon"'),
    row("chaos", 3, "3 is not a fault"),
    row("chaos", [3], "3 is not a fault"),
    row("chaos", ["kill 0 at ready"] * 101, "101 faults"),
    # Resources.
    row("threads", "0", "must be between 1 and 4,096, not 0"),
    row("threads", "5000", "must be between 1 and 4,096, not 5000"),
    row("threads", "many", '"many" is not a whole number'),
    row("threads", 1.5, "1.5 is not a whole number; or write auto"),
    row("threads", True, "true is not a whole number; or write auto"),
    row("memory_limit", "0", "0 bytes"),
    row("memory_limit", "2 apples", '"2 apples" is not a size'),
    row("memory_limit", 1.5, "1.5 is not a size"),
    row("network", "vpn", '"vpn" is not known'),
    row("network", "private", _PRIVATE, hosts="a"),
    row("gpus", "0", "there is no GPU 0: this machine has no NVIDIA GPU"),
    row("gpus", "per-task 99", '"per-task 99": a task gets 1 to'),
    row("gpus", 1, '1 may be a name or a number of GPUs; write "1" or "per-task 1"'),
    row("gpu_memory", "much", '"much" is not a size'),
    row("gpu_memory", "4", '"4" is too little to train in'),
    # The strategy.
    row("strategy", "horovod", '"horovod" is not known; write multi-worker-mirrored, '),
    row("strategy", "dtensor", "dtensor needs a mesh"),
    row("ps", "1", "mirrored has no parameter servers", strategy="mirrored"),
    row("ps", "0", "parameter-server needs at least 1", strategy="parameter-server"),
    row("evaluator", True, "dtensor has only workers, all equal; leave it out", mesh="batch=2"),
    row("chief", "separate", "mirrored runs as one process", strategy="mirrored"),
    *(
        row("workers", "2", f"{strategy} runs as one process, since {why}; {remedy}", strategy=strategy)
        for strategy, why, remedy in (
            ("mirrored", "it mirrors the model on the devices of one process", "use --replicas 2, or --s"),
            ("one-device", "it puts everything on one device", "leave it out, or use --strategy multi-"),
            ("tpu", "one process drives all cores of a TPU", "leave it out, or use --strategy multi-"),
        )
    ),
    row("workers", "2", "central-storage runs as one process, since ", strategy="central-storage"),
    row("replicas", "2", "means logical CPU devices, which a script ... add --strategy mirrored or"),
    row("replicas", "65", "must be between 1 and 64, not 65", strategy="mirrored"),
    row("replicas", "0", "must be between 1 and 64, not 0", strategy="mirrored"),
    row("device", "CPU:1", '"CPU:1": there is one CPU device, CPU:0', strategy="one-device"),
    row("device", "GPU:0", "there is no GPU:0", strategy="one-device"),
    row("mesh", "batch=2,depth=2", '"batch=2,depth=2" is not a mesh; write batch=2,model=2'),
    row("mesh", "batch=0", '"batch=0": batch must be a whole number from 1 to 1024'),
    row("workers", "2", "the mesh batch=3,model=1 has 3 devices, ... use --workers 1 or 3", mesh="batch=3"),
    row("communication", "nccl", "NCCL sums on GPUs", strategy="multi-worker-mirrored"),
    row("global_batch", "0", "must be between 1 and 2,147,483,647, not 0"),
    row("global_batch", "50", "3 workers cannot share 50 examples equally; write 48 or 51", workers=3),
    row("global_batch", "256", "3 workers cannot share 256 examples equally; write 252 or 264", **_RANGE),
    row("global_batch", "5", "2 workers cannot share 5 examples equally; write 12", **_RANGE),
    row("global_batch", "12", "5 workers cannot share 12 examples", **_WIDE),
    # Options of another strategy.
    row("replicas", "2", "means logical CPU devices, which one-device does not use", strategy="one-device"),
    row("device", "GPU:0", "means the one device ... mirrored ... add --strategy one-device", **_MIRRORED),
    row("tpu", "mine", "means the name of a TPU, ... add --strategy tpu", **_MIRRORED),
    row("mesh", "batch=2", "means a DTensor mesh, ... add --strategy dtensor", **_MIRRORED),
    row("communication", "ring", f"{_SUMMED}; add --strategy multi-worker-mirrored", strategy="dtensor"),
    # Hosts.
    row("hosts", "a,a", "a is named twice"),
    row("hosts", [3], "3 is not a host; put it in quotes"),
    row("hosts", "a,b", "5 tasks need 5 slots, and a:2, b:2 have 4", workers=5, tasks_per_host=2),
    row("hosts", "a:2,b:2", "5 tasks need 5 slots", workers="2..5"),
    row("hosts", "a", "Slurm chooses the hosts; write --nodes, or --slurm", engine="slurm"),
    row("sync", True, "it copies over ssh; under Slurm", engine="slurm"),
    row("time", "1m", "1m is not longer than --notice 2m", engine="slurm", notice="2m"),
    row("engine", "rsh", '"rsh" is not known'),
    row("engine", "ssh", "ssh needs hosts: add --hosts a:2,b:2"),
    row("engine", "local", "local runs all tasks on this machine", hosts="a"),
    row("network", "private", f"{_PRIVATE}, ... leave out --engine slurm", engine="slurm"),
    row("slurm", "--no-shell", f"--no-shell: {_SLURM_ENDS}", engine="slurm"),
    row("slurm", "-p x --wait", f"--wait: {_SLURM_ENDS}", engine="slurm"),
    row("tensorboard", True, "it reads the event files on this machine", hosts="a"),
    row("tasks_per_host", "0", "must be between 1 and", hosts="a"),
    row("ssh_command", "", 'names no program; write "ssh -F FILE", or leave it out', hosts="a"),
    row("ssh_command", [""], "names no program", hosts="a"),
    row("interface", "eth 0", '"eth 0" is not the name of a network interface', hosts="a"),
    row("placement", "packed", '"packed" is not known; did you mean "pack"?', hosts="a"),
    # The start of the tasks.
    row("start", "fork", '"fork" is not known; write auto or spawn'),
    row("keras", "2", '"2" is not known; write auto, 3 or legacy'),
    row("keras", True, "true is not known"),
    row("preload", "not-a/module", '"not-a/module" is not the name of a Python module; write numpy'),
    row("preload", ",", "no module is named"),
    row("preload", [3], "3 is not the name of a module; put it in quotes"),
    row("no_fixes", "perhaps", '"perhaps" is neither true nor false'),
    # Output.
    row("profile", "ten", '"ten" is not a range of steps; write 10-20'),
    row("profile", "0-5", "the first step is 1"),
    row("profile", "20-10", "20-10 ends before it begins; write 10-20"),
    row("profile", "1-5000", "1-5000 is more than 1000 steps"),
    row("profile", "3-4", "true is not a Python program", command=["true"]),
    row("profile", "3-4", "it reads the recordings on this machine", hosts="a:1", command=["train.py"]),
    row("tasks", "9", "there is no worker:9 in this run; it has worker:0 to worker:3", workers=4),
    row("tasks", "evaluator", "there is no evaluator:0 in this run"),
    row("tasks", "0,", "'' is not a task"),
    row("tasks", "1000000000000", "'1000000000000' is not a task; write worker:0"),
    row("tasks", 1.5, "1.5 is not a task; write worker:0 or 0"),
    row("tasks", [], "no task is named"),
    row("timestamps", "utc", '"utc" is not a format of times; write time or iso'),
    row("detach", "maybe", '"maybe" is neither true nor false'),
    row("color", "red", '"red" is not known; write auto, always or never'),
    row("wait", "maybe", '"maybe" is not known; write ready or done'),
)
