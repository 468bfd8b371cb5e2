"""`manage.py stepwell …`: the whole command line, with the project's engine."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from django.core.management import CommandError, ManagementUtility, call_command

from tests.surfaces.contrib.django.conftest import PROJECT, environment


def manage(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROJECT / "manage.py", *words], env=environment(url),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_a_worker_of_the_project_runs_started_instances(project: str) -> None:
    """One process serves, another starts and waits; neither has an argument that names the app."""
    worker = subprocess.Popen(
        [sys.executable, PROJECT / "manage.py", "stepwell", "worker", "--queue", "default=2"],
        env=environment(project), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdout is not None
    try:
        ready = worker.stdout.readline()
        started = manage(project, "stepwell", "start", "post_parcel", '{"order": 7}', "--wait", "30")
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)

    assert ready.endswith("ready: default=2\n")
    assert started.stdout.splitlines()[1:] == ['"posted 7"'], started.stderr
    assert worker.returncode == 0


def test_a_worker_of_stepwells_own_command_line_sets_django_up(project: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "stepwell", "worker", "stepwell.contrib.django:engine"], cwd=PROJECT,
        env=environment(project, DJANGO_SETTINGS_MODULE="bookshop_settings"), stdout=subprocess.PIPE, text=True,
    ) as worker:  # fmt: skip
        assert worker.stdout is not None
        ready = worker.stdout.readline()
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)

    assert ready.endswith("ready: default=10, mail=2\n")
    assert worker.returncode == 0


def test_flags_of_manage_are_not_passed_on_and_exit_codes_are_stepwells(
    project: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "")  # which manage.py sets, for the whole process
    utility = ManagementUtility(
        ["manage.py", "stepwell", "show", "999999", "--settings=bookshop_settings", "--pythonpath", str(PROJECT)]
    )

    with pytest.raises(SystemExit) as ended:
        utility.execute()

    assert ended.value.code == 1
    assert capsys.readouterr() == ("", "stepwell: no instance with id 999999\n")


def test_help_shows_the_command_as_typed_with_manage(capsys: pytest.CaptureFixture[str], project: str) -> None:
    from stepwell._cli.main import main  # noqa: PLC0415 - as the command does

    with pytest.raises(SystemExit):
        main(["worker", "--help"], prog="manage.py stepwell", app="stepwell.contrib.django:engine")

    shown = capsys.readouterr().out
    assert "usage: manage.py stepwell worker" in shown
    assert "  manage.py stepwell worker --queue default=20\n" in shown
    assert "shop.app:engine" not in shown
    assert "APP" not in shown


def test_code_can_call_the_command(project: str, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("stepwell", "migrate", "--check")

    assert "the schema is up to date" in capsys.readouterr().out
    with pytest.raises(CommandError, match="exit code 1") as caught:
        call_command("stepwell", "show", "999999")
    assert caught.value.returncode == 1
