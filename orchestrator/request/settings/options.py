"""Every option of `orch up`, declared once.

The flags of `orch up` and `orch config` with their help and completion, the keywords of Cluster and Session, the
ORCH_* variables, the keys of orch.toml and the table in docs/cli.md (scripts/tools/options) derive from these.
A new option is one declaration here, plus its use: a field of JobSpec or DisplayOptions, and its type in keywords.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.core.job.choices import (
    DEFAULT_EVALUATOR_TIMEOUT_S,
    DEFAULT_FAILURE_GRACE_S,
    DEFAULT_GRACE_S,
    DEFAULT_LINK_TIMEOUT_S,
    DEFAULT_MAX_RESTARTS,
    DEFAULT_NOTICE_S,
    DEFAULT_START_TIMEOUT_S,
    DEFAULT_WORKERS,
    ChiefOption,
    Communication,
    EngineName,
    FailurePolicy,
    KerasOption,
    NetworkOption,
    Placement,
    StartOption,
    Strategy,
)
from orchestrator.request.settings.declaration import (
    ELSEWHERE,
    EVERYWHERE,
    NOT_IN_PYTHON,
    Kind,
    Option,
    Part,
    Where,
)
from orchestrator.request.settings.request import WATCH_SOURCES, ColorMode, TimeFormat, WaitFor, WatchFrom

_NO_LIMIT = "no limit"
_STRATEGIES = ", ".join(Strategy)

# The formatter would give each argument its own line.
# fmt: off
# A debugger is for one run.
_NOT_SET_FOR_LATER = Where.COMMAND_LINE | Where.KEYWORD
COMMAND = Option("command", Kind.WORDS, metavar="[-- CMD ...]", where=ELSEWHERE | Where.ROLE,
    part=Part.COMMAND,
    help="train.py ..., python train.py ..., -m pkg.mod ..., or any executable. Without it an example"
         " of orch runs, and words that begin with - are its options: -- --epochs 3")
HOSTS = Option("hosts", Kind.HOSTS, metavar="a:2,b:2|@FILE", default="this machine",
    where=EVERYWHERE | Where.ROLE,
    help="Run the tasks on these hosts: names for ssh, each with its number of tasks, or @FILE with one host a"
         " line.",
    more="A role's own `hosts` are some of them, without numbers.")
ENGINE = Option("engine", Kind.CHOICE, choices=tuple(EngineName), default="ssh with --hosts, else local",
    help="How the hosts are reached.")
SLURM = (
    Option("nodes", Kind.WHOLE_NUMBER,
           help="With --engine slurm: the number of nodes.",
           more="Inside an allocation: use so many of its nodes."),
    Option("partition", Kind.TEXT, metavar="NAME",
           help="Partition of a new allocation."),
    Option("account", Kind.TEXT, metavar="NAME",
           help="Account that a new allocation is charged to."),
    Option("time", Kind.DURATION,
           help="Time limit of a new allocation: 30m, 8h."),
    Option("slurm", Kind.WORDS, metavar="WORDS",
           help='Further options of sbatch: "--gres=gpu:4 --constraint=a100".'),
)
JSON = Option("json", Kind.SWITCH, where=Where.COMMAND_LINE, part=Part.SCREEN,
              help="Print one JSON document (or JSON lines) on stdout.")
COLOR = Option("color", Kind.CHOICE, choices=tuple(ColorMode), default=ColorMode.AUTO, part=Part.SCREEN,
               where=NOT_IN_PYTHON,
               help="When to use colours.")
QUIET = Option("quiet", Kind.SWITCH, letter="q", where=Where.COMMAND_LINE, part=Part.SCREEN,
               help="Show only the tasks' lines and errors.")
VERBOSE = Option("verbose", Kind.SWITCH, letter="v", where=Where.COMMAND_LINE, part=Part.SCREEN,
    help="Show more about what orch does.")
AS_ROOT_ANYWAY = Option("as_root_anyway", Kind.SWITCH, where=Where.COMMAND_LINE, part=Part.SCREEN,
    help="As root: use the state directory of another user, who can then mislead orch.")

# By the heading of `orch up --help` and of the table in the documentation.
GROUPS: Mapping[str, tuple[Option, ...]] = {
    "Common": (
        Option("workers", Kind.WORKERS, metavar="N|FEWEST..MOST", letter="n", default=DEFAULT_WORKERS,
               role="worker", part=Part.ROLES,
               help="Number of workers. worker:0 is the chief, unless the chief has a task of its own. With 2..4, a"
                    " run that loses a host restarts with those that fit on the other hosts.",
               more="[More](hosts.md#fewer-hosts-and-more-again)."),
        COMMAND,
        Option("name", Kind.TEXT, metavar="NAME", default="the directory's",
               help="Name of the run.",
               more="A given name must not be live already (exit 4)."),
        Option("replace", Kind.SWITCH, part=Part.DISPLAY,
               help="First stop live runs of the same name.",
               more="Without `--name`: those of this directory."),
        Option("detach", Kind.SWITCH, letter="d", part=Part.DISPLAY, where=NOT_IN_PYTHON,
               help="Print the run's id and leave the run in the background.",
               more="`-q` prints the id, too. Under Slurm: [a batch job](slurm.md#from-a-login-node)."),
        Option("wait", Kind.CHOICE, choices=tuple(WaitFor), part=Part.DISPLAY, where=NOT_IN_PYTHON,
               help="Detach, but return only when the run is ready or done."),
        Option("timeout", Kind.DURATION, default=_NO_LIMIT,
               help="End the run after this time: 90, 5m, 1h30m.",
               more="The exit code is 124."),
        Option("env", Kind.ENVIRONMENT, metavar="K=V", letter="e", where=EVERYWHERE | Where.ROLE,
               help="Add a variable to the tasks' environment; repeatable.",
               more="orch sets TF_CONFIG and ORCH_* itself and refuses them here."),
        Option("cwd", Kind.PATH, default="the current directory", help="Working directory of the tasks."),
        Option("checkpoint_dir", Kind.PATH, default="checkpoints/ of the run",
               help="ORCH_CHECKPOINT_DIR of the tasks."),
        Option("log_dir", Kind.PATH, default="the state directory",
               help="Where to create the run's directory."),
        Option("dry_run", Kind.SWITCH, where=Where.COMMAND_LINE, part=Part.DISPLAY,
               help="Show the plan and start nothing, as orch config does."),
    ),
    "Roles and strategy": (
        Option("ps", Kind.WHOLE_NUMBER, metavar="M", default=0, role="ps", part=Part.ROLES,
               help="Number of parameter servers. With them, the run succeeds when its chief does.",
               more="[More](roles.md)."),
        Option("evaluator", Kind.SWITCH, role="evaluator", part=Part.ROLES,
               help="Add a task that evaluates the checkpoints.",
               more="The run waits for it when the training has ended."),
        Option("evaluator_timeout", Kind.LIMIT, default=DEFAULT_EVALUATOR_TIMEOUT_S,
               help="How long to wait for the evaluator when the training has ended; off for no limit."),
        Option("chief", Kind.CHOICE, choices=tuple(ChiefOption), default="separate with --ps, else worker0",
               role="chief", part=Part.ROLES,
               help="Whether the chief is a task of its own or worker:0."),
        Option("strategy", Kind.STRATEGY, metavar="NAME", choices=tuple(Strategy),
               default="the script's own", part=Part.STRATEGY,
               help=f"Strategy of tf.distribute. It decides which processes there are: {_STRATEGIES}.",
               more="The default of the examples is multi-worker-mirrored. [More](devices.md)."),
        Option("replicas", Kind.WHOLE_NUMBER, part=Part.STRATEGY,
               help="For mirrored and central-storage: train on N logical CPU devices."),
        Option("device", Kind.DEVICE, metavar="NAME", part=Part.STRATEGY,
               help="For one-device: the device, such as CPU:0 or GPU:1."),
        Option("tpu", Kind.TEXT, metavar="NAME", default="$TPU_NAME", part=Part.STRATEGY,
               help="For tpu: its name or address, or local."),
        Option("mesh", Kind.MESH, metavar="batch=B,model=M", part=Part.STRATEGY,
               help="For dtensor: the number of parts of the batch and of the model, over --workers"
                    " processes."),
        Option("global_batch", Kind.WHOLE_NUMBER,
               help="ORCH_GLOBAL_BATCH of the tasks: the examples in a step of all workers together.",
               more="The examples follow it; in other programs it is only a variable."),
        Option("communication", Kind.CHOICE, choices=tuple(Communication), default=Communication.AUTO,
               part=Part.STRATEGY,
               help="For multi-worker-mirrored: how gradients are summed."),
    ),
    "Failure": (
        Option("on_failure", Kind.CHOICE, metavar="POLICY", choices=tuple(FailurePolicy),
               default="abort; evaluator, and workers of parameter servers: restart-task",
               where=EVERYWHERE | Where.ROLE,
               help="After a failure of any role: abort, restart all tasks, restart-task, or continue"
                    " without the task.",
               more="`restart` continues from the checkpoints; `restart-task` keeps the port"
                    " ([more](restart.md), [why](roles.md))."),
        Option("max_restarts", Kind.WHOLE_NUMBER, default=DEFAULT_MAX_RESTARTS,
               help="How often to restart. Given alone, it means --on-failure restart.",
               more="With `restart-task` it counts for each task, else for the run. With `--ps` it has no"
                    " such meaning."),
        Option("start_timeout", Kind.LIMIT, default=DEFAULT_START_TIMEOUT_S,
               help="Time from the first ready task until all have joined the cluster; off for no limit.",
               more="After it the run ends (exit 124) and names the task that is missing, what it is"
                    " doing and where, or the address at which it joins. There is no limit before the"
                    " first server listens, since preparing data may take long."),
        Option("stall_timeout", Kind.LIMIT, default=_NO_LIMIT,
               help="End the run and name the task that hangs, when a task is silent for this time. While"
                    " all are silent and one computes, three times as long. Without it, a task that is"
                    " silent and idle for 5 minutes is only reported.",
               more="Silent means neither output nor progress. A task that computes, or that waits in"
                    " TensorFlow for a task with output, does not hang ([more](stacks.md))."),
        Option("stop_on_nan", Kind.SWITCH, help="End the run when the loss of a task is NaN or infinite.",
               more="Without it, the loss is red and one message says when it began."
                    " It needs [progress](progress.md) with a loss. The run is not restarted."),
        Option("expect_cluster", Kind.SWITCH,
               help="Fail if no task joins a cluster of several tasks: each would train a model of its own.",
               more="The exit code is 1. Without it, the report of such a run has a warning."),
        Option("grace", Kind.DURATION, default=DEFAULT_GRACE_S,
               help="Time from SIGTERM to SIGKILL when the run is stopped."),
        Option("failure_grace", Kind.DURATION, default=DEFAULT_FAILURE_GRACE_S,
               help="The same after a failure.",
               more="Also when the client was killed."),
        Option("notice", Kind.DURATION, default=DEFAULT_NOTICE_S,
               help="Let the tasks save their state and end so long before the end of their Slurm allocation, and"
                    " within this time after SIGUSR2.",
               more="[More](notices.md)."),
        Option("chaos", Kind.FAULTS, metavar="FAULTS",
               help='Inject faults: "kill worker:1 at step 20; stop chief at 30s for 25s".',
               more="[More](chaos.md)."),
    ),
    "Resources": (
        Option("gpus", Kind.GPUS, metavar="WHICH", choices=("auto", "none"), default="auto",
               where=EVERYWHERE | Where.ROLE,
               help='auto: all, split equally; none; 0,1: these, split equally; "per-task N".',
               more="[More](devices.md)."),
        Option("gpu_memory", Kind.GPU_MEMORY, metavar="grow|SIZE", default="all of it",
               help="What a task allocates on each GPU that it sees: a size such as 4GiB, or grow for"
                    " what it needs."),
        Option("threads", Kind.THREADS, metavar="auto|N", default="auto",
               help="Threads in each of a task's TensorFlow pools; auto leaves them to TensorFlow.",
               more="Variables that you set yourself stay ([more](cpu.md))."),
        Option("memory_limit", Kind.SIZE, default=_NO_LIMIT,
               help="Memory limit of a task with all its processes: 2GiB, 512MB.",
               more="Memory is PSS. A task that exceeds it is killed and named ([more](resources.md))."),
        Option("network", Kind.CHOICE, choices=tuple(NetworkOption), default=NetworkOption.HOST,
               help="private: only tasks of this run can reach its servers.",
               more="[What does not work there](network.md)."),
    ),
    "Hosts": (
        HOSTS,
        ENGINE,
        Option("tasks_per_host", Kind.WHOLE_NUMBER, default="the tasks are split equally",
               help="Number of tasks on a host without its own number in --hosts."),
        Option("placement", Kind.CHOICE, choices=tuple(Placement), default=Placement.PACK,
               help="pack: fill one host after the other, in the order of roles; spread: deal the tasks to"
                    " the hosts in turn."),
        Option("interface", Kind.TEXT, metavar="NAME", default="the one that ssh reaches",
               help="Network interface of the hosts that the tasks talk over: eth0, ib0."),
        Option("link_timeout", Kind.DURATION, default=DEFAULT_LINK_TIMEOUT_S,
               help="A host that has not answered for this time is lost, and ends its tasks itself."),
        Option("remote_python", Kind.TEXT, metavar="PATH", default="the path of the one here",
               help="Python interpreter on the hosts: 3.11 or newer."),
        Option("sync", Kind.SWITCH,
               help="Copy the working directory to the hosts by rsync before the start."),
        Option("ssh_command", Kind.WORDS, metavar="WORDS", default="ssh",
               help='The command to connect with: "ssh -F FILE".'),
        *SLURM,
    ),
    "Start": (
        Option("start", Kind.CHOICE, choices=tuple(StartOption), default=StartOption.AUTO, part=Part.START,
               help="auto: fork tasks from a process that has imported TensorFlow, where the script"
                    " cannot notice it; spawn: never fork.",
               more="[When](scripts.md)."),
        Option("warm", Kind.WARM, bare="10m", part=Part.DISPLAY, where=NOT_IN_PYTHON,
               help="Keep orch's processes and the preloaded modules for this time after the run, for the next"
                    " `orch up` in this directory; off for none.",
               more="[More](warm.md)."),
        Option("watch", Kind.WATCH, metavar="GLOB", bare=WATCH_SOURCES, part=Part.DISPLAY, where=NOT_IN_PYTHON,
               help="Run again when the script, a local module, orch.toml, or a file of this pattern changes.",
               more="It needs `pip install 'tf-orch[watch]'` ([more](warm.md#run-again-on-save))."),
        Option("watch_from", Kind.CHOICE, choices=tuple(WatchFrom), default=WatchFrom.START,
               part=Part.DISPLAY, where=NOT_IN_PYTHON,
               help="With --watch: start with new checkpoints, or continue from the last one."),
        Option("preload", Kind.MODULES, metavar="MODULE", part=Part.START,
               help="A module to import before tasks are forked; repeatable.",
               more="You vouch that its import starts nothing, and reads nothing that a task changes."),
        Option("script_tf_config", Kind.SWITCH,
               help="Let a script that sets TF_CONFIG use its own; otherwise it keeps orch's.",
               more="orch does not hold the ports that it names"
                    " ([more](scripts.md#a-script-that-sets-tf_config))."),
        Option("no_fixes", Kind.SWITCH, help="Do not repair known faults of Keras."),
        Option("keras", Kind.CHOICE, choices=tuple(KerasOption), default=KerasOption.AUTO, part=Part.START,
               help="Which Keras the tasks get: the one that the script needs, Keras 3, or tf_keras.",
               more="[How orch decides](scripts.md)."),
    ),
    "Debugging": (
        Option("debug", Kind.DEBUGGED, metavar="TASK|all", where=_NOT_SET_FOR_LATER,
               help="Let VS Code attach to these tasks by debugpy; each waits for it before its first line.",
               more="It listens on 127.0.0.1, without a password. Time limits are suspended meanwhile"
                    " ([more](debugging.md))."),
        Option("debug_no_wait", Kind.SWITCH, where=_NOT_SET_FOR_LATER,
               help="Do not wait for VS Code."),
        Option("interactive", Kind.TASKS, metavar="TASK", where=Where.COMMAND_LINE,
               help="Connect this terminal to a task: breakpoint(), pdb and input() work there. The lines of the"
                    " other tasks wait meanwhile.",
               more="Ctrl-] leaves the task, `i` returns ([more](debugging.md#a-terminal-in-a-task))."),
        Option("pdb", Kind.SWITCH, where=Where.COMMAND_LINE,
               help="Open pdb in this terminal when an exception ends a task, before the other tasks are stopped.",
               more="[More](debugging.md#after-a-failure)."),
    ),
    "Output": (
        Option("tasks", Kind.TASKS, metavar="0,2", default="all", part=Part.DISPLAY, where=NOT_IN_PYTHON,
               help="Show only the lines of these tasks; all are logged."),
        Option("timestamps", Kind.TIMESTAMPS, letter="t", metavar="iso", choices=tuple(TimeFormat),
               bare=TimeFormat.TIME, part=Part.DISPLAY, where=NOT_IN_PYTHON,
               help="Show the time of arrival before each line, as HH:MM:SS; with =iso also date,"
                    " milliseconds and time zone."),
        Option("no_prefix", Kind.SWITCH, part=Part.DISPLAY, where=NOT_IN_PYTHON,
               help="Show lines without `worker:0 | `."),
        Option("all_lines", Kind.SWITCH, part=Part.DISPLAY, where=NOT_IN_PYTHON,
               help="Show every line on the terminal.",
               more="Without it, start-up lines of TensorFlow, equal lines of several tasks and repeated"
                    " warnings are [folded](#on-the-screen)."),
        Option("junit", Kind.PATH, metavar="FILE", part=Part.DISPLAY, where=NOT_IN_PYTHON,
               help="Write the result of the run to this file as JUnit XML: a test case for each task and for"
                    " the run.",
               more="It is written when the run has ended, so it needs the foreground or `--wait done`"
                    " ([more](#for-ci))."),
        Option("tensorboard", Kind.SWITCH,
               help="Have the tasks write TensorBoard event files, and serve them on 127.0.0.1 where"
                    " TensorBoard is installed.",
               more="The tasks find the directory in `ORCH_TENSORBOARD_DIR`. It is served while the run"
                    " lasts ([more](tensorboard.md))."),
        Option("profile", Kind.STEPS, metavar="10-20",
               help="Record TensorFlow's profiler for these steps in every task, and show where the time went.",
               more="Steps of Keras's `fit` and of loops that report them, over all epochs"
                    " ([more](profile.md))."),
        Option("ui", Kind.SWITCH, part=Part.DISPLAY, where=NOT_IN_PYTHON,
               help="Serve the page of `orch ui` while this command follows the run, and print its address.",
               more="It is not served twice: an `orch ui` of yours that runs is used"
                    " ([more](page.md#the-live-page))."),
        JSON,
        COLOR,
        QUIET,
        VERBOSE,
        AS_ROOT_ANYWAY,
    ),
}

# fmt: on

UP_OPTIONS = tuple(option for group in GROUPS.values() for option in group)
# The options that are settings of a run, by name.
SETTINGS = {
    option.name: option for option in UP_OPTIONS if option.where & ELSEWHERE or option.part is Part.JOB
}
# The options that a table of a role may set, by name.
ROLE_OPTIONS = {option.name: option for option in UP_OPTIONS if Where.ROLE in option.where}
# The option that gives the number of tasks, by role.
COUNT_OF = {option.role: option for option in UP_OPTIONS if option.role}
