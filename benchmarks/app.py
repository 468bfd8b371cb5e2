"""The engine of `stepwell worker benchmarks.app:engine`: the machines of the workloads, over the URL in the
environment.
"""

from __future__ import annotations

from benchmarks import machines
from benchmarks.bench import QUEUES
from stepwell import Engine

engine = Engine(machines=machines.ALL, queues=QUEUES)
