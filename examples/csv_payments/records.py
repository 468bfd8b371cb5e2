"""The records of the pipeline, and their ids, which stay the same when a step runs again."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

import msgspec

Part: TypeAlias = str | Decimal | Path | int

OUTPUT_SUFFIX = ".out"
REJECTED_SUFFIX = ".rejected"


class CsvFolder(msgspec.Struct, frozen=True, rename="camel"):
    """The folder of the input files, and its files when the run was started (see `listing`)."""

    path: str
    files: tuple[str, ...]


class CsvPaymentsInputFile(msgspec.Struct, frozen=True, rename="camel"):
    """One input file."""

    id: UUID
    filepath: str
    csv_folder_path: str


class PaymentRecord(msgspec.Struct, frozen=True, rename="camel"):
    """One payment, as a line of a file has it. It is the request to the provider."""

    id: UUID
    csv_id: str
    recipient: str
    amount: Decimal
    currency: str
    csv_payments_input_file_path: str


class PaymentStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The provider's reply."""

    id: UUID
    reference: str
    status: str  # "Complete" or "Rejected"
    message: str
    fee: Decimal
    conversation_id: UUID
    status_code: int
    payment_record_id: UUID
    payment_record: PaymentRecord


class PaymentOutput(msgspec.Struct, frozen=True, rename="camel"):
    """One line of an output file."""

    id: UUID
    csv_payments_output_filename: str
    csv_id: str
    recipient: str
    amount: Decimal
    currency: str
    conversation_id: UUID
    status: int
    message: str
    fee: Decimal


class CsvPaymentsOutputFile(msgspec.Struct, frozen=True, rename="camel"):
    """One output file: the result of the pipeline is a list of these."""

    id: UUID
    filepath: str
    csv_folder_path: str


def stable_id(kind: str, *parts: Part) -> UUID:
    """The id of these parts, the same in every process: a name-based UUID, as Java's nameUUIDFromBytes makes it."""
    text = "|".join((kind, *map(_normal, parts)))
    return UUID(bytes=hashlib.md5(text.encode(), usedforsecurity=False).digest(), version=3)


def _normal(part: Part) -> str:
    if isinstance(part, Decimal):
        return f"{part.normalize():f}"  # 5.10 and 5.1 are one amount
    return str(part).strip()
