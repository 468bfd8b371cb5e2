"""The test kit: a database per test, a drain with a tally, time that moves, and workers that die where you say."""

from stepwell._probes import POINTS
from stepwell.testing.asserting import ANY, assert_cancelled, assert_done, assert_failed, assert_waiting
from stepwell.testing.conformance import TransportConformance
from stepwell.testing.effects import Effect
from stepwell.testing.exploring import explore_crashes
from stepwell.testing.far_sides import AnsweringSide, FarSide
from stepwell.testing.harness import Harness
from stepwell.testing.points import Point, armed, crash
from stepwell.testing.report import Crash, Difference, Report
from stepwell.testing.scripted import NEVER, Later, Says, Scripted, Twice
from stepwell.testing.streams import StreamConformance
from stepwell.testing.tally import Tally
from stepwell.testing.walking import Walk, walks

__all__ = [
    "ANY", "NEVER", "POINTS", "AnsweringSide", "Crash", "Difference", "Effect", "FarSide", "Harness", "Later", "Point",
    "Report", "Says", "Scripted", "StreamConformance", "Tally", "TransportConformance", "Twice", "Walk", "armed",
    "assert_cancelled", "assert_done", "assert_failed", "assert_waiting", "crash", "explore_crashes", "walks",
]  # fmt: skip
