"""Annotations of a class, resolved: names looked up, type variables replaced by what they stand for."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast, get_args, get_origin, get_type_hints

from rowlock.errors import DeclarationError, DeclarationTypeError


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a declaration the compiler is; makes the refusals, which name the path to the field (J5, W2)."""

    where: str
    path: str
    depth: int = 0

    def under(self, part: str) -> Place:
        """The place of a part of this one."""
        return Place(self.where, self.path + part, self.depth + 1)

    def error(self, rule: str) -> DeclarationError:
        """The refusal of a value or a name."""
        return DeclarationError(f"{self.where}: {self.path}: {rule}")

    def kind(self, rule: str) -> DeclarationTypeError:
        """The refusal of a kind of type."""
        return DeclarationTypeError(f"{self.where}: {self.path}: {rule}")


def field_hints(tp: Any, place: Place, localns: Mapping[str, Any] | None) -> dict[str, Any]:
    """The annotations of a class or a closed generic of one, inherited ones included.

    Raises DeclarationError if a name can not be resolved.
    """
    cls = cast("type", get_origin(tp) or tp)
    try:
        hints = get_type_hints(cls, localns=_names(cls, localns), include_extras=True)
    except NameError as exc:
        raise place.error(
            f"the annotation {exc.name!r} can not be resolved (J5); define or import it at module level, outside of "
            f"TYPE_CHECKING, or declare the job in the scope that defines it"
        ) from exc
    except DeclarationError as exc:  # an Id[…] that is evaluated here
        raise place.error(str(exc)) from exc
    except Exception as exc:
        raise place.error(
            f"its annotations can not be evaluated, {type(exc).__name__}: {exc} (J5); correct them"
        ) from exc
    bindings: dict[type, dict[Any, Any]] = {}
    _bind(tp, bindings)
    if not any(bindings.values()):
        return hints
    return {name: substitute(hint, _binding_of(name, cls, bindings)) for name, hint in hints.items()}


def _names(cls: type, localns: Mapping[str, Any] | None) -> dict[str, Any]:
    """What annotations may name besides their module's globals; the inner scope wins."""
    module = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
    names = {name: value for name, value in vars(cls).items() if name not in module}
    if cls.__name__ not in module:  # a local class that names itself
        names[cls.__name__] = cls
    names.update({p.__name__: p for p in getattr(cls, "__type_params__", ())})
    names.update(localns or {})
    return names


def _bind(tp: Any, found: dict[type, dict[Any, Any]]) -> None:
    """What the type variables of a class and its bases stand for, seen from `tp`."""
    cls: Any = get_origin(tp) or tp
    if not isinstance(cls, type) or cls in found:
        return
    found[cls] = dict(zip(getattr(cls, "__parameters__", ()), get_args(tp), strict=False))
    for base in vars(cls).get("__orig_bases__", cls.__bases__):
        if get_origin(base) not in (Generic, Protocol):  # these only list the variables
            _bind(substitute(base, found[cls]), found)


def _binding_of(name: str, cls: type, bindings: dict[type, dict[Any, Any]]) -> dict[Any, Any]:
    """The binding of the class that declares the field: two classes may use one variable for two things."""
    if issubclass(cls, dict):  # a TypedDict: no bases in its MRO, and annotations that repeat the inherited ones
        declaring = [base for base in bindings if name in inspect.get_annotations(base)][-1:]
    else:
        declaring = [base for base in cls.__mro__ if name in inspect.get_annotations(base)][:1]
    return bindings.get(declaring[0], {}) if declaring else {}


def substitute(tp: Any, binding: Mapping[Any, Any]) -> Any:
    """An annotation with its type variables replaced; those that the binding lacks stay."""
    if isinstance(tp, TypeVar):
        return binding.get(tp, tp)
    parameters: tuple[Any, ...] = getattr(tp, "__parameters__", ())
    if not binding or not parameters or inspect.isclass(tp):
        return tp
    return tp[tuple(binding.get(parameter, parameter) for parameter in parameters)]
