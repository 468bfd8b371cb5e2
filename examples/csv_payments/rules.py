"""The provider's decisions, by rules: the same payment gets the same reply however often it is asked about."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from examples.csv_payments.records import PaymentRecord, PaymentStatus, stable_id

COMPLETE: Final = ("Complete", "Mock response")
REJECTED: Final = ("Rejected", "Mock payment provider rejected the payment.")
REFERENCE: Final = "101"
CODE: Final = 1000
FEE: Final = Decimal("1.01")
_WHOLE: Final = 10_000  # parts of a probability


def is_hit(csv_id: str, what: str, probability: float) -> bool:
    """Whether an event of this probability happens to a payment: by its id alone, with Java's Objects.hash."""
    number = 31 * (31 + java_hash(csv_id)) + java_hash(what)
    return number % 2**32 % _WHOLE < round(probability * _WHOLE)


def java_hash(text: str) -> int:
    """String.hashCode of Java, for texts without characters beyond 16 bits."""
    number = 0
    for sign in text:
        number = (31 * number + ord(sign)) % 2**32
    return number


def judge(record: PaymentRecord, reject: float) -> PaymentStatus:
    """The reply to a payment."""
    status, message = REJECTED if is_hit(record.csv_id, "provider-reject", reject) else COMPLETE
    return PaymentStatus(
        stable_id("PaymentStatus", str(record.id)), REFERENCE, status, message, FEE,
        stable_id("conversation", str(record.id)), CODE, record.id, record,
    )  # fmt: skip
