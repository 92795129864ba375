"""Reading a handler's signature (J3): which parameter is the input, which the Context, what may come back.

Every refusal happens here, when the job is declared, and names the job, the parameter, the value and the rule (J5).
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Never, NoReturn, Union, cast, get_args, get_origin, get_type_hints

from rowlock.errors import DeclarationError, DeclarationTypeError
from rowlock.model.context import Context
from rowlock.model.limits import shown
from rowlock.model.outcome import Outcome

_SHAPE = "a handler takes nothing, one input, a Context, or both"
_NONE_OR_OUTCOME = "a handler returns None or an outcome (Ack, Retry, Snooze, Dead, Drop)"
_ADDRESS = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


@dataclass(frozen=True, slots=True)
class Signature:
    """What a handler takes. `input_type` is meaningless while `input_name` is None."""

    is_async: bool
    input_name: str | None
    input_type: Any
    wants_context: bool
    context_first: bool

    def arguments(self, input: object, context: object) -> tuple[object, ...]:
        """The handler's arguments in its own order."""
        if self.input_name is None:
            return (context,) if self.wants_context else ()
        if not self.wants_context:
            return (input,)
        return (context, input) if self.context_first else (input, context)


def read_signature(handler: Callable[..., Any], *, job: str, names: Mapping[str, Any]) -> Signature:
    """Read `handler`; `names` are those of `names_around`, `job` begins each refusal.

    Raises DeclarationError, or DeclarationTypeError for a wrong kind of thing. (J3, J5)
    """
    function = require_function(handler, job=job)
    is_async = inspect.iscoroutinefunction(handler)
    signature = inspect.signature(function)
    inputs: list[tuple[str, Any]] = []
    contexts: list[str] = []
    order: list[str] = []
    for parameter in signature.parameters.values():
        _require_plain(parameter, job=job)
        annotation = _resolve(function, parameter.name, parameter.annotation, names, job=job)
        order.append(parameter.name)
        if annotation is Context:
            contexts.append(parameter.name)
        elif annotation is None or annotation is type(None):
            raise DeclarationError(
                f"{job}: parameter {parameter.name!r} is None (J3); a job without input leaves it out"
            )
        else:
            inputs.append((parameter.name, annotation))
    if len(inputs) > 1:
        raise DeclarationError(
            f"{job}: parameters {', '.join(repr(name) for name, _ in inputs)} are {len(inputs)} inputs (J3); "
            f"{_SHAPE}: put the fields into one record"
        )
    if len(contexts) > 1:
        raise DeclarationError(
            f"{job}: parameters {' and '.join(map(repr, contexts))} are both a Context (J3); {_SHAPE}"
        )
    _require_outcome(_resolve(function, "return", signature.return_annotation, names, job=job), job=job)
    input_name, input_type = inputs[0] if inputs else (None, None)
    return Signature(
        is_async=is_async,
        input_name=input_name,
        input_type=input_type,
        wants_context=bool(contexts),
        context_first=bool(contexts) and order[0] == contexts[0],
    )


def names_around(handler: object, local_names: Mapping[str, Any]) -> dict[str, Any]:
    """The names that an annotation may use besides its module's: local ones where the job is declared, and the
    handler's own closure. So types may live in a function, as they do in tests."""
    function = inspect.unwrap(handler) if callable(handler) else handler
    closure = _closure(function) if isinstance(function, types.FunctionType) else {}
    return {**local_names, **closure}


def require_function(handler: object, *, job: str) -> types.FunctionType:
    """The plain function behind `handler`, decorators of `functools.wraps` looked through; anything else is refused."""
    if isinstance(handler, functools.partial):
        raise DeclarationTypeError(f"{job}: a functools.partial is no handler (J3); write a function that calls it")
    if isinstance(handler, types.MethodType | staticmethod | classmethod):
        raise DeclarationTypeError(f"{job}: a method is no handler (J3); write a function of the module")
    if not isinstance(handler, types.FunctionType):
        raise DeclarationTypeError(
            f"{job}: {shown(handler)} is no handler (J3); declare a plain function, sync or async"
        )
    function = inspect.unwrap(handler)
    if not isinstance(function, types.FunctionType):
        raise DeclarationTypeError(f"{job}: the handler wraps {shown(function)} (J3); declare a plain function")
    if function.__name__ == "<lambda>":
        raise DeclarationTypeError(
            f"{job}: a lambda is no handler, it has no name and no annotations (J3); write a function"
        )
    owner = function.__qualname__.rpartition(".")[0]
    if owner and not owner.endswith("<locals>"):
        raise DeclarationTypeError(
            f"{job}: {function.__qualname__} is a method of a class (J3); write a function of the module"
        )
    for layer in {handler, function}:
        if inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer):
            raise DeclarationTypeError(f"{job}: a generator is no handler (J3); {_NONE_OR_OUTCOME}, it does not yield")
    if inspect.iscoroutinefunction(function) and not inspect.iscoroutinefunction(handler):
        raise DeclarationTypeError(
            f"{job}: a sync wrapper around an async function is no handler (J3), its coroutine would never be awaited; "
            f"make the decorator's wrapper async"
        )
    return function


def _require_plain(parameter: inspect.Parameter, *, job: str) -> None:
    where = f"{job}: parameter {str(parameter)!r}"
    if parameter.kind not in _ADDRESS:
        kind = {
            inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments",
            inspect.Parameter.VAR_KEYWORD: "takes any keyword arguments",
        }.get(parameter.kind, "is keyword-only")
        raise DeclarationError(f"{where} {kind} (J3); {_SHAPE}, each as a plain parameter")
    if parameter.default is not inspect.Parameter.empty:
        raise DeclarationError(
            f"{where} has a default, which no attempt would ever use (J3); remove it, or give the record's field one"
        )
    if parameter.annotation is inspect.Parameter.empty:
        raise DeclarationError(
            f"{where} has no annotation (J3); annotate it with the input's record type, or with Context"
        )


def _closure(function: types.FunctionType) -> dict[str, Any]:
    """Names of the enclosing functions that the handler itself uses; empty cells are not assigned yet."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def _resolve(function: types.FunctionType, name: str, annotation: Any, names: Mapping[str, Any], *, job: str) -> Any:
    """An annotation as a type; a string is read in the function's module and the names around the declaration."""
    if annotation is inspect.Signature.empty:
        return None
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    what = "the return annotation" if name == "return" else f"the annotation of parameter {name!r}"
    try:
        hints = get_type_hints(holder, globalns=function.__globals__, localns=dict(names), include_extras=True)
    except NameError as exc:
        raise DeclarationError(
            f"{job}: {what} names {exc.name!r}, which is not defined where the job is declared (J3); "
            f"import it at run time (not only under TYPE_CHECKING) and above the job"
        ) from None
    except Exception as exc:
        raise DeclarationError(
            f"{job}: {what} can not be read as a type: {exc} (J3); write a plain annotation"
        ) from exc
    return _plain(hints[name])


def _plain(annotation: Any) -> Any:
    """The type behind `Annotated[…]` and behind Python 3.12's `type X = …`."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif type(annotation).__name__ == "TypeAliasType" and hasattr(annotation, "__value__"):
            annotation = annotation.__value__
        else:
            return annotation


def _require_outcome(annotation: Any, *, job: str) -> None:
    """A missing return annotation reads as None: nothing is promised, and the attempt checks what comes."""
    stack = [annotation]
    while stack:
        member = _plain(stack.pop())
        if member is None or member is type(None) or member is NoReturn or member is Never:
            continue
        if get_origin(member) in (Union, types.UnionType):
            stack.extend(get_args(member))
        elif not (isinstance(member, type) and issubclass(cast("type[object]", member), Outcome)):
            label = member.__name__ if isinstance(member, type) else str(member)
            raise DeclarationTypeError(
                f"{job}: the return annotation has {label} in it (J3); {_NONE_OR_OUTCOME}: "
                f"keep results in your own tables"
            )
