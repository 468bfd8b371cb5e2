"""The test kit: a database per test, drains that count, a clock that moves, and workers that die at named points."""

from stepwell._process.probes import POINTS
from stepwell.testing.assertions import ANY, assert_cancelled, assert_done, assert_failed, assert_waiting
from stepwell.testing.crashes.explore import explore_crashes
from stepwell.testing.crashes.report import Crash, Difference, Report
from stepwell.testing.drain_report import Tally
from stepwell.testing.effects import Effect
from stepwell.testing.harness import Harness
from stepwell.testing.probes import Point, armed, crash
from stepwell.testing.random_walk import Walk, walks
from stepwell.testing.stops.explore import explore_stops
from stepwell.testing.stops.report import Gap, Stop, StopReport
from stepwell.testing.transports.conformance import TransportConformance
from stepwell.testing.transports.remote_end import AnsweringSide, FarSide
from stepwell.testing.transports.scripted import NEVER, Later, Says, Scripted, Twice
from stepwell.testing.transports.streams import StreamConformance

__all__ = [
    "ANY", "NEVER", "POINTS", "AnsweringSide", "Crash", "Difference", "Effect", "FarSide", "Gap", "Harness", "Later",
    "Point", "Report", "Says", "Scripted", "Stop", "StopReport", "StreamConformance", "Tally", "TransportConformance",
    "Twice", "Walk", "armed", "assert_cancelled", "assert_done", "assert_failed", "assert_waiting", "crash",
    "explore_crashes", "explore_stops", "walks",
]  # fmt: skip
