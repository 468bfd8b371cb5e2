"""Lists a folder, once, for a run over it: `python -m examples.csv_payments.listing FOLDER` prints the run's input.

The listing is stored with the run: after a crash another worker finds the same files, whatever was added meanwhile.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from examples.csv_payments.records import CsvFolder


def list_folder(folder: Path) -> CsvFolder:
    """The present CSV files of a folder, by name."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    path = folder.resolve()
    names = sorted(file.name for file in path.iterdir() if file.suffix.lower() == ".csv" and file.is_file())
    return CsvFolder(str(path), tuple(names))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    try:
        sys.stdout.write(f"{msgspec.json.encode(list_folder(parser.parse_args().folder)).decode()}\n")
    except NotADirectoryError as error:
        parser.error(str(error))
