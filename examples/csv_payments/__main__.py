"""`make csv-payments`: the whole example, with nothing installed beforehand."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.csv_payments.play import Play, PlayFailed
from examples.csv_payments.processes import ROOT, Processes, own_environment
from examples.csv_payments.samples import write_sample
from stepwell import Engine
from stepwell.embedded import EmbeddedServer

# After this many milliseconds others get the partitions of a killed process. A real Kafka allows 6 s at least.
SOON = {"session.timeout.ms": 3_000, "heartbeat.interval.ms": 500}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make csv-payments", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000, help="payments in the sample file")
    parser.add_argument("--reject", type=float, default=0.08, help="the share that the provider rejects")
    parser.add_argument("--rate", type=float, default=250, help="replies per second of the provider")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "csv-payments", help="for the files")
    parser.add_argument("--written", choices=("yaml", "python"), default="yaml", help="which form of the pipeline")
    parser.add_argument("--no-kills", action="store_true", help="kill no process")
    return parser.parse_args(arguments)


@contextmanager
def own_postgres() -> Iterator[tuple[str, Path]]:
    """Run an own Postgres while the block runs; yields its URL and a folder for logs."""
    home = Path(tempfile.mkdtemp(prefix="csv-payments-"))
    home.chmod(0o755)  # for root the server is `nobody`, which has to pass; the cluster's own folder is private
    try:
        with EmbeddedServer(home / "postgres") as server:
            yield server.url(), home
    finally:
        shutil.rmtree(home, ignore_errors=True)


async def run(options: argparse.Namespace, url: str, logs: Path) -> None:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in one
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    source = options.folder.resolve() / "payments.csv"
    source.parent.mkdir(parents=True, exist_ok=True)
    write_sample(source, options.rows)
    await Engine(url).migrate()
    async with Processes(logs, url, kafka=SOON, reject=options.reject, rate=options.rate) as processes:
        play = Play(url, processes, source, options.rows, options.reject, options.written, not options.no_kills)
        try:
            await play.perform()
        except (PlayFailed, TimeoutError):
            sys.stderr.write(processes.logs)
            raise


def main() -> int:
    options = parse()
    for name in set(os.environ) - set(own_environment()):
        del os.environ[name]
    sys.stdout.write("Starting a Postgres of its own, from the wheel\n")
    sys.stdout.flush()
    try:
        with own_postgres() as (url, logs):
            asyncio.run(run(options, url, logs))
    except asyncio.CancelledError:
        sys.stderr.write("csv-payments: interrupted; everything but the files is removed\n")
        return 130
    except PlayFailed as failure:
        sys.stderr.write(f"csv-payments: {failure}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
