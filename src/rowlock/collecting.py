"""Collecting groups of jobs for an application: from modules by name, or as they are (J11)."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from rowlock.errors import DeclarationError, DeclarationTypeError
from rowlock.model.group import Jobs
from rowlock.model.job import Job
from rowlock.model.limits import shown


def groups_of(include: Iterable[Jobs | str]) -> list[Jobs]:
    """The groups that `include` means: a group, or a module in whose namespace groups are.

    Of a package named `job` the modules in it are looked through too (J7). Raises DeclarationError; what importing
    a module raises passes through.
    """
    if isinstance(include, str) or not isinstance(include, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers need not be typed
        raise DeclarationTypeError(
            f'include is {shown(include)} (J11); give a list of modules and groups, as ["newsroom.job"]'
        )
    found: dict[int, Jobs] = {}
    for each in include:
        groups = [each] if isinstance(each, Jobs) else _groups_of_module(each)
        found.update((id(group), group) for group in groups)
    return list(found.values())


def _groups_of_module(name: object) -> list[Jobs]:
    if not isinstance(name, str):
        raise DeclarationTypeError(f"include has {shown(name)} in it (J11); give a Jobs group or a module's name")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as exc:
        # Only where this module, or a package above it, is what is missing: not something that it imports.
        if exc.name is None or not f"{name}.".startswith(f"{exc.name}."):
            raise
        raise DeclarationError(
            f"include names the module {name!r}, and there is no module {exc.name!r} (J11); "
            f"look at the spelling, and whether the program is started where it can be imported"
        ) from None
    groups = _groups_in(module)
    if not groups:
        raise DeclarationError(
            f"include names the module {name!r}, which has no Jobs group in its namespace (J11); "
            f"declare one there, as jobs = Jobs(), or name the module that has it"
        )
    return groups


def _groups_in(module: ModuleType) -> list[Jobs]:
    modules = [module]
    if hasattr(module, "__path__") and module.__name__.rpartition(".")[2] == "job":
        modules += [
            importlib.import_module(f"{module.__name__}.{each.name}") for each in pkgutil.iter_modules(module.__path__)
        ]
    return [value for each in modules for value in vars(each).values() if isinstance(value, Jobs)]


def with_names_of(jobs: Sequence[Job[Any, Any]], there: Mapping[str, Job[Any, Any]]) -> dict[str, Job[Any, Any]]:
    """Jobs by name and by alias, and these with them. Raises DeclarationError for a name that is taken (J4)."""
    taken = dict(there)
    for job in jobs:
        for name in job.names:
            other = taken.setdefault(name, job)
            if other is not job:
                raise DeclarationError(
                    f"job {job.name!r} ({job.file}:{job.line}): the name or alias {shown(name)} is that of "
                    f"{other.name!r} ({other.file}:{other.line}) already (J4); rename one of them"
                )
    return taken
