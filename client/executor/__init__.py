"""The warm executor: runs the tasks of local SuperNodes without starting Python and torch anew for every message.

Flower starts a process per message, which imports torch again. Here one process per host imports everything once
(`preload`), asks each local SuperNode (started with `--isolation process`) for tasks (`supernode`), and forks a child
per task (`child`). `serving` is the loop around these; `python -m client.executor` starts it. Linux only.

A site runs its own code: the child calls the app that is installed here, imported before the fork, and the bundle that
the run was submitted with stays closed (`code`). Only a bundle whose SHA-256 stands in the site's start file is run, as
Flower's own process would; then what was imported of the project is forgotten first.

A child fetches its message first and then waits for its turn: a SuperNode hands a task out before it has all of the
message, and a core that waits for the network is lost.

A child that must end is killed, never asked. Flower's own handler of SIGTERM reports the task as finished without a
reply; the SuperNode, which serves one message at a time, then waits for that reply for ever. Of a killed child the
executor tells the SuperNode at once; without that the SuperNode would notice after a minute.

A task may never get its message: when a run ends while a SuperNode fetches one, the task stays and its child waits for
hours. Such a child is not counted, and it is killed as soon as its SuperNode, which serves one message at a time, has
another task. Then the SuperNode is told that the old one is over: missing its heartbeat, it would make up a reply, send
that in the place of the next one, and keep the next one back until there is another message.
"""

import os

# Before Flower and NumPy are imported: no telemetry, no look for updates; no thread pool, which a fork would break;
# and should a library ask whether there is a GPU, torch must not open the device to answer.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
