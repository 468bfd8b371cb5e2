"""The test kit: a database per test, time that moves, named points where a process may wait or die.

A first cut, for Stepwell's own tests; it becomes public with the doors.
"""

from stepwell.testing.harness import Harness
from stepwell.testing.points import Point, armed, crash

__all__ = ["Harness", "Point", "armed", "crash"]
