"""The last commit of a claim: its task is over before the answer comes, and nobody waits for that but the hand."""

from __future__ import annotations

from collections.abc import Callable

from stepwell._runtime.hands import Hand, Hands

Refused = Callable[[BaseException], None]


class Parting:
    """Stands where a future would: to end the task at once, instead of waking it to do nothing, saves a tenth."""

    __slots__ = ("_hand", "_hands", "_is_told", "_on_refused")

    def __init__(self, hand: Hand, hands: Hands, on_refused: Refused) -> None:
        self._hand = hand
        self._hands = hands
        self._on_refused = on_refused
        self._is_told = False

    def done(self) -> bool:
        return self._is_told or self._hand.abandoned

    def cancelled(self) -> bool:
        return self._hand.abandoned

    def cancel(self) -> None:
        """The commit will not come: let the claim go."""
        self._hand.abandoned = True
        self.set_result()

    def set_result(self, _: object = None, /) -> None:
        """It is committed, or stale: either way the claim is over."""
        self._is_told = True
        self._hand.part()
        self._hands.drop(self._hand.claim)

    def set_exception(self, error: BaseException, /) -> None:
        """Postgres has refused it."""
        self._is_told = True
        self._on_refused(error)
        self._hand.part()
