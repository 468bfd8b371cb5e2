"""examples/csv_payments: payments from CSV files, asked of a provider over Kafka, in processes that really die."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason='the extra "kafka" is not installed')
pytest.importorskip("yaml", reason='the extra "yaml" is not installed')

from confluent_kafka import Consumer, TopicPartition

from examples.csv_payments.cluster import PARTITIONS
from examples.csv_payments.listing import list_folder
from examples.csv_payments.pipeline import TOPICS, WRITTEN
from examples.csv_payments.play import Play
from examples.csv_payments.processes import TOKEN_KEYS, Processes
from examples.csv_payments.rejecting import read_rejected
from examples.csv_payments.rules import COMPLETE, REJECTED
from examples.csv_payments.samples import sample, write_sample
from examples.csv_payments.writing import read_output
from stepwell import Engine
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

FOLDER = Path(__file__).parents[3] / "examples" / "csv_payments"
QUICK = {"session.timeout.ms": 1_000, "heartbeat.interval.ms": 100, "linger.ms": 0}
REJECT = 0.08
PATIENCE = 60

Run = Callable[[Path], Awaitable[Any]]


@asynccontextmanager
async def example(
    make_harness: MakeHarness, logs: Path, written: str = "yaml", **provider: object
) -> AsyncIterator[tuple[Harness, Run]]:
    """A cluster, a provider and a worker; `run(folder)` runs the pipeline over a folder to its end."""
    h = await make_harness()
    async with AsyncExitStack() as stack:
        processes = await stack.enter_async_context(Processes(logs, h.url, kafka=QUICK, reject=REJECT, **provider))
        await processes.provider()
        pipeline = WRITTEN[written](processes.brokers, QUICK)
        engine = await stack.enter_async_context(
            Engine(h.url, machines=[pipeline], transports=pipeline.transports, token_keys=TOKEN_KEYS)
        )
        await stack.enter_async_context(engine.worker(queues={"default": 100}))

        async def run(folder: Path) -> Any:
            started = await engine.start(pipeline, list_folder(folder), key=str(folder))
            return await started.result(PATIENCE)

        yield h, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the CSV files are."""
    path = tmp_path / "payments"
    path.mkdir()
    return path


def outcome(path: Path) -> tuple[int, int]:
    """How many were approved, and how many not."""
    messages = [row["Message"] for row in read_output(path)]
    return messages.count(COMPLETE[1]), messages.count(REJECTED[1])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def ids(path: Path) -> list[str]:
    return [row["CSV Id"] for row in read_output(path)]


@pytest.mark.parametrize("written", ["yaml", "python"])
async def test_twelve_payments_are_asked_and_written_in_order_in_every_notation(
    make_harness: MakeHarness, tmp_path: Path, folder: Path, written: str
) -> None:
    (folder / "twelve.csv").write_bytes((FOLDER / "sample-12.csv").read_bytes())

    async with example(make_harness, tmp_path, written) as (_, run):
        result = await run(folder)

    output = folder / "twelve.csv.out"
    assert [file["filepath"] for file in result] == [str(output)]
    assert ids(output) == [str(number) for number in range(1, 13)]
    assert outcome(output) == (4, 8)
    assert output.read_text().splitlines()[:2] == [
        "'CSV Id','Recipient','Amount','Currency','Reference','Status','Message','Fee'",
        f"'1','Natasha Thomas','5047.29','AUD','{read_output(output)[0]['Reference']}','1000','{REJECTED[1]}','1.01'",
    ]


async def test_of_a_thousand_payments_907_are_approved_and_93_are_not(
    make_harness: MakeHarness, tmp_path: Path, folder: Path
) -> None:
    write_sample(folder / "thousand.csv", 1_000)

    async with example(make_harness, tmp_path) as (h, run):
        await run(folder)
        admitted = await h.sql(ADMITTED)

    assert outcome(folder / "thousand.csv.out") == (907, 93)
    assert dict(admitted[0]) == {"questions": 1_000, "items": 1_000, "completed": 1_000, "continued": 1_000}


ADMITTED = """
select count(*) as questions, count(distinct q.item) as items, count(*) filter (where q.status = 'completed') as
  completed, (select count(distinct i.child_index) from stepwell.instances i where i.continues_unit_id is not null
              having count(*) = count(distinct i.child_index)) as continued
from stepwell.interactions q
"""


async def test_every_payment_is_admitted_once_despite_killed_worker_and_provider(
    make_harness: MakeHarness, tmp_path: Path, folder: Path
) -> None:
    write_sample(folder / "thousand.csv", 1_000)
    h, ledger = await make_harness(), tmp_path / "ledger"

    async with Processes(tmp_path, h.url, kafka=QUICK, reject=REJECT, rate=250, ledger=ledger) as processes:
        await Play(h.url, processes, folder / "thousand.csv", 1_000, REJECT).perform()
        dead_letters = await asyncio.to_thread(count_records, processes.brokers, TOPICS[2])
    admitted = await h.sql(ADMITTED)
    asked = await h.sql("select id::text || ' ' || (request ->> 'csvId') as line from stepwell.interactions")

    seen = ledger.read_text().splitlines()
    assert outcome(folder / "thousand.csv.out") == (907, 93)
    assert dict(admitted[0]) == {"questions": 1_000, "items": 1_000, "completed": 1_000, "continued": 1_000}
    assert set(seen) == {row["line"] for row in asked}  # at least once each, and nothing else
    assert {line.split()[1] for line in seen} == {str(number) for number in range(1, 1_001)}
    assert dead_letters == 0


def count_records(brokers: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "reader", "log_level": 0})
    marks: Any = [consumer.get_watermark_offsets(TopicPartition(topic, number)) for number in range(PARTITIONS)]
    consumer.close()
    return sum(high - low for low, high in marks)


BROKEN = [
    b"1,Natasha Thomas,5047.29,AUD",
    b"2,Bo Quispe,988.02",  # line 3: a column is missing
    b"3,Rosa Adeyemi,many,PLN",
    b"4,Fatima \xff\xfe,902.22,JPY",
    b"5,Mei\x00Bianchi,2524.53,BRL",
    b'6,"Quentin M,620.81,USD',
    b"",
    b"  7,  \"Garc\xc3\xada, Chidi\",\"6,613.59\",USD",
    b"8,=SUM(A1:A9),6140.84,JPY",
    b"9,,489.45,PLN",
    b"10,Dmitri Ivanova,-4395.99,CHF",
    b"11,Quentin Chen,5987.46,pounds",
    b"12,Quentin Eriksen,1081.61,USD,more",
]


async def test_every_run_rejects_broken_rows_and_writes_each_whole_output(
    make_harness: MakeHarness, tmp_path: Path, folder: Path
) -> None:
    broken = folder / "b.csv"
    broken.write_bytes(b"\n".join([b"\xef\xbb\xbfid,recipient,amount,currency", *BROKEN]) + b"\n")
    write_sample(folder / "a.CSV", 40)
    write_sample(folder / "c.csv", 3)
    (folder / "nobody.txt").write_text("not a CSV file")

    async with example(make_harness, tmp_path) as (_, run):
        first = await run(folder)
        kept = read_rejected(broken)
        write_sample(folder / "a.CSV", 7)
        (folder / "c.csv.out").write_text("left over\n" * 100)
        again = await run(folder)

    outputs = [folder / name for name in ("a.CSV.out", "b.csv.out", "c.csv.out")]
    assert [file["filepath"] for file in first] == [file["filepath"] for file in again] == [*map(str, outputs)]
    assert [ids(output) for output in outputs] == [[*"1234567"], ["1", "7", "8"], ["1", "2", "3"]]
    assert [row["Recipient"] for row in read_output(outputs[1])][1:] == ["García, Chidi", "'=SUM(A1:A9)"]
    assert read_output(outputs[1])[1]["Amount"] == "6613.59"
    assert [(line.line, line.file) for line in kept] == [
        (number, str(broken)) for number in (3, 4, 5, 6, 7, 11, 12, 13, 14)
    ]
    assert [line.reason.partition(":")[0] for line in kept][:5] == [
        "has 3 columns, not 4", "Amount 'many' is not an amount above 0, such as 5047.29 or 5,047.29", "not UTF-8",
        "has a NUL",
        "not CSV",
    ]  # fmt: skip
    assert read_rejected(broken) == kept
    assert names(folder) == [
        "a.CSV", "a.CSV.out", "b.csv", "b.csv.out", "b.csv.rejected", "c.csv", "c.csv.out", "nobody.txt"
    ]  # fmt: skip


async def test_a_worker_killed_while_reading_omits_no_row_and_rejects_none_twice(
    make_harness: MakeHarness, tmp_path: Path, folder: Path
) -> None:
    lines = list(sample(1_500))
    lines[5::7] = ["broken"] * len(lines[5::7])
    source, h = folder / "some.csv", await make_harness()
    source.write_text("\n".join(lines), "utf-8")

    async with Processes(tmp_path, h.url, kafka=QUICK) as processes:
        pipeline = WRITTEN["yaml"](processes.brokers)
        async with Engine(h.url, machines=[pipeline], transports=pipeline.transports, token_keys=TOKEN_KEYS) as engine:
            run = await engine.start(pipeline, list_folder(folder))
            first, _ = await processes.worker(), await processes.provider()
            await eventually(lambda: asked_some(h))
            await first.kill()
            await processes.worker()
            await run.result(PATIENCE)

    assert ids(folder / "some.csv.out") == [line.partition(",")[0] for line in lines[1:] if line != "broken"]
    assert [line.line for line in read_rejected(source)] == [*range(6, len(lines) + 1, 7)]


async def asked_some(h: Harness) -> bool:
    [row] = await h.sql("select count(*) as number from stepwell.interactions")
    return bool(row["number"])


async def test_the_command_runs_the_whole_demo_and_prints_plain_text(folder: Path, tmp_path: Path) -> None:
    """`make csv-payments`, with few payments."""
    words = ("--rows", "12", "--rate", "1000", "--no-kills", "--written", "python", "--folder", str(folder))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.csv_payments", *words, cwd=FOLDER.parents[1], stdout=PIPE, stderr=PIPE,
        env={**os.environ, "STEPWELL_DATABASE_URL": "nowhere", "STEPWELL_LEASE": "nonsense"},
    )  # fmt: skip
    out, err = (text.decode() for text in await process.communicate())

    assert (process.returncode, err) == (0, "")
    assert out.endswith("4 approved, 8 not\n")
    assert "\x1b" not in out
    assert outcome(folder / "payments.csv.out") == (4, 8)


def test_the_sample_of_twelve_is_what_the_generator_writes() -> None:
    assert (FOLDER / "sample-12.csv").read_text() == "".join(f"{line}\n" for line in sample(12))


def test_the_readme_names_existing_files() -> None:
    readme = (FOLDER / "README.md").read_text()
    named = {path.name for path in FOLDER.iterdir() if path.suffix in (".py", ".yaml", ".csv")} - {"__init__.py"}

    assert [name for name in named if f"`{name}`" not in readme] == []
    assert "907 approved, 93 not" in readme
