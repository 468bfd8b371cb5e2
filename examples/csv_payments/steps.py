"""The steps of the pipeline: plain functions, from a folder to its output files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from examples.csv_payments.reading import read_lines
from examples.csv_payments.records import (
    OUTPUT_SUFFIX,
    CsvFolder,
    CsvPaymentsInputFile,
    CsvPaymentsOutputFile,
    PaymentOutput,
    PaymentRecord,
    PaymentStatus,
    stable_id,
)
from examples.csv_payments.rejecting import forget
from examples.csv_payments.writing import OutputFiles
from stepwell.pipelines import many_to_many, one_to_many, one_to_one, reject


@one_to_many(name="Process Folder")
def process_folder(folder: CsvFolder) -> Iterator[CsvPaymentsInputFile]:
    """The files that the folder had when the run was started: this runs again after a crash, and gives the same."""
    path = Path(folder.path)
    for name in folder.files:
        yield CsvPaymentsInputFile(stable_id("CsvPaymentsInputFile", path / name), str(path / name), str(path))


@one_to_many(name="Process Csv Payments Input")
def process_input(file: CsvPaymentsInputFile) -> Iterator[PaymentRecord]:
    """The payments of a file; broken lines are rejected, with their number."""
    path = Path(file.filepath)
    forget(path)
    for line in read_lines(path):
        if line.payment is not None:
            yield line.payment
        else:
            reject(line.text, line.problem or "", place=f"{path}:{line.number}")


@one_to_one(name="Process Payment Status")
async def process_status(status: PaymentStatus) -> PaymentOutput:
    """The line of one payment. A rejected payment is a line too, with its message."""
    record = status.payment_record
    return PaymentOutput(
        stable_id("PaymentOutput", record.csv_id, record.recipient, record.amount, record.currency, status.status_code,
                  status.message),
        record.csv_payments_input_file_path + OUTPUT_SUFFIX, record.csv_id, record.recipient, record.amount,
        record.currency, status.conversation_id, status.status_code, status.message, status.fee,
    )  # fmt: skip


@many_to_many(name="Process Csv Payments Output File")
async def process_output(outputs: AsyncIterator[PaymentOutput]) -> AsyncIterator[CsvPaymentsOutputFile]:
    """One file per input, in the order of the inputs; existing files are replaced as a whole, when all are written."""
    with OutputFiles() as files:
        async for output in outputs:
            files.write(output)
        for path in files.finish():
            yield CsvPaymentsOutputFile(stable_id("CsvPaymentsOutputFile", path), str(path), str(path.parent))
