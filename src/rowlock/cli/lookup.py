"""Finding the application that a command works on: from APP, $ROWLOCK_APP or pyproject.toml."""

from __future__ import annotations

import importlib
import os
import re
import sys
import sysconfig
import tomllib
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rowlock.cli.failing import CommandError
from rowlock.errors import CronError, DeclarationError, DirectCall, RowlockError, SettingsError
from rowlock.runtime.signals import SIGNALS

if TYPE_CHECKING:
    from rowlock.app import App

VARIABLE = "ROWLOCK_APP"
_REMEDY = "as newsroom.main:app"
_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_PASSWORD = re.compile(r"(://[^\s:/@]*):[^\s@]*@")


class Reference(NamedTuple):
    """An application by name, and where the name is from."""

    text: str
    origin: str

    def __str__(self) -> str:
        return f"{self.origin} {self.text!r}"


class ImportFailure(CommandError):  # noqa: N818 - it is no ImportError
    """The application's module raised while it was imported, at `file:line`, which is the user's code."""

    def __init__(self, message: str, code: str, file: str, line: int) -> None:
        super().__init__(message)
        self.code = code
        self.file = file
        self.line = line


def application(argument: str | None, option: str | None = None) -> App:
    """The application. The current directory can be imported from. Raises CommandError, ImportFailure, RowlockError."""
    reference = _chosen(argument, option)
    if not _REFERENCE.fullmatch(reference.text):
        raise CommandError(f"{reference} does not name an application; write module:name, {_REMEDY}")
    module_name, _, attribute = reference.text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _imported(module_name, reference)
    try:
        found = attrgetter(attribute)(module)
    except AttributeError:
        raise CommandError(
            f"{reference}: the module {module_name} has no {attribute!r}{_perhaps(module)}; look at the spelling"
        ) from None
    return _as_app(found, reference)


def _chosen(argument: str | None, option: str | None) -> Reference:
    if argument is not None and option is not None and argument != option:
        raise CommandError(f"APP is {argument!r} and --app is {option!r}; give one of them")
    given = argument if argument is not None else option
    if given is not None:
        return Reference(given, "APP" if argument is not None else "--app")
    if named := os.environ.get(VARIABLE):
        return Reference(named, f"${VARIABLE}")
    return _of_pyproject(Path("pyproject.toml"))


def _of_pyproject(path: Path) -> Reference:
    nothing = CommandError(
        f'no application is named; give APP, {_REMEDY}, or set ${VARIABLE}, or write app = "…" under [tool.rowlock] '
        f"in pyproject.toml of {Path.cwd()}"
    )
    try:
        read: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise nothing from None
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} can not be read: {error}; repair it, or give APP, {_REMEDY}") from None
    named: object = read
    for key in ("tool", "rowlock", "app"):
        named = cast("dict[str, object]", named).get(key) if isinstance(named, dict) else None
    if named is None:
        raise nothing
    if not isinstance(named, str):
        raise CommandError(f"{path}: app under [tool.rowlock] is no text; write module:name, {_REMEDY}")
    return Reference(named, "[tool.rowlock] app")


def _imported(name: str, reference: Reference) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only where this module, or a package above it, is what is missing: not something that it imports.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _failure(error, name, reference) from error
        raise CommandError(
            f"{reference}: there is no module {error.name!r} in {Path.cwd()} or on the Python path; look at the "
            f"spelling, and at the directory that the command is started in"
        ) from None
    except SystemExit as error:
        if SIGNALS.received:
            raise
        raise _failure(error, name, reference) from error
    except Exception as error:
        raise _failure(error, name, reference) from error


def _failure(error: BaseException, name: str, reference: Reference) -> ImportFailure:
    file, line = _place(error)
    if isinstance(error, RowlockError):
        return ImportFailure(str(error), _code(error), file, line)
    # It is the developer's own module, so its error's text is shown, but for a password in a URL.
    text = " ".join(_PASSWORD.sub(r"\1:***@", str(error)).split())[:300]
    why = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return ImportFailure(f"{reference}: importing {name} fails: {why} ({relative(file)}:{line})", "import", file, line)


def _code(error: RowlockError) -> str:
    if isinstance(error, SettingsError):
        return "settings"
    return "declaration" if isinstance(error, (DeclarationError, CronError, DirectCall)) else "import"


def _place(error: BaseException) -> tuple[str, int]:
    """The last line of the user's code that led to the error: of what is installed only if nothing else did."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 1
    foreign = (str(Path(__file__).parents[1]), importlib.__file__, "<")
    installed = tuple(map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
    own, place, step = None, ("?", 1), error.__traceback__
    while step is not None:
        line = (step.tb_frame.f_code.co_filename, step.tb_lineno)
        if not line[0].startswith(foreign):
            place = line
            own = own if line[0].startswith(installed) else line
        step = step.tb_next
    return own or place


def relative(file: str) -> str:
    """The file as it is seen from the current directory, if it is below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _as_app(found: Any, reference: Reference) -> App:
    from rowlock.app import App

    if isinstance(found, App):
        return found
    article = f"{type(found).__module__}.{type(found).__qualname__}"
    raise CommandError(f"{reference} is of type {article}, not a rowlock.App; name the App, {_REMEDY}")


def _perhaps(module: ModuleType) -> str:
    from rowlock.app import App

    there = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f" (an App there is {there[0]!r})" if there else ""
