"""A virtual environment for each of the other systems, with pinned versions, made when it is first needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent / ".venvs"
OURS = "stepwell"
PSYCOPG, UVLOOP = "psycopg[binary]==3.3.8", "uvloop==0.23.0"

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "pgqueuer": ("pgqueuer==1.6.0", "asyncpg==0.32.0", UVLOOP),
    "chancy": ("chancy==0.26.0", PSYCOPG, UVLOOP),
    "absurd": ("absurd-sdk==0.5.1", "absurdctl==0.5.1", PSYCOPG, UVLOOP),
    "procrastinate": ("procrastinate==3.10.0", PSYCOPG, UVLOOP),
    "dbos": ("dbos==3.3.0", PSYCOPG),
}
SYSTEMS = (OURS, *REQUIREMENTS)


def pythons_of(systems: Sequence[str], say: Callable[[str], None]) -> dict[str, Path]:
    """The Python that runs each system; one that cannot be installed is left out."""
    found = {}
    for system in systems:
        try:
            found[system] = python_of(system, say)
        except subprocess.CalledProcessError:
            say(f"{system} cannot be installed, and is left out")
    return found


def python_of(system: str, say: Callable[[str], None]) -> Path:
    """The Python that runs a system; ours runs in the environment of this process."""
    if system == OURS:
        return Path(sys.executable)
    home = FOLDER / system
    stamp, wanted = home / ".installed", "\n".join((sys.version, *REQUIREMENTS[system]))
    python = home / "bin" / "python"
    if not stamp.exists() or stamp.read_text("utf-8") != wanted:
        say(f"installing {', '.join(REQUIREMENTS[system])}")
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, *REQUIREMENTS[system]], check=True)  # noqa: S603 - only the requirements above
        stamp.write_text(wanted, "utf-8")
    return python
