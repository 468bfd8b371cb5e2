"""The blocking API: `engine.sync`, for scripts, Flask and Django; from many threads, and after a fork."""

from stepwell.sync.engine import SyncEngine
from stepwell.sync.handle import SyncHandle
from stepwell.sync.insights import SyncInsights
from stepwell.sync.interactions import SyncInteractions
from stepwell.sync.queues import SyncQueues

__all__ = ["SyncEngine", "SyncHandle", "SyncInsights", "SyncInteractions", "SyncQueues"]
