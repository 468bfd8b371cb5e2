"""The last commit of a claim: its task is over before the answer comes, and nobody waits for that but the hand."""

from __future__ import annotations

from collections.abc import Callable

from stepwell._runtime.hands import Hand, Hands

Refused = Callable[[BaseException], None]


class Parting:
    """Stands where a future would: to end the task at once, instead of waking it to do nothing, saves a tenth."""

    __slots__ = ("_hand", "_hands", "_on_refused")

    def __init__(self, hand: Hand, hands: Hands, on_refused: Refused) -> None:
        self._hand = hand
        self._hands = hands
        self._on_refused = on_refused

    def done(self) -> bool:
        return self._hand.abandoned

    def cancelled(self) -> bool:
        return self._hand.abandoned

    def cancel(self) -> None:
        """The commit will not come: let the claim go."""
        self._hand.abandoned = True
        self.set_result()

    def set_result(self, _: object = None, /) -> None:
        """It is committed, or stale: either way the claim is over."""
        hand = self._hand
        hand.is_parting = False
        self._hands.drop(hand.claim)
        if hand.farewell is not None and not hand.farewell.done():
            hand.farewell.set_result(None)

    def set_exception(self, error: BaseException, /) -> None:
        """Postgres has refused it."""
        self._hand.is_parting = False
        self._on_refused(error)
