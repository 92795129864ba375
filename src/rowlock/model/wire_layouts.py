"""How each kind of record class says its fields, and how an instance is made from them (contract W1).

attrs and pydantic are recognised without importing them: a class of theirs exists only if they are imported.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NotRequired, Required, get_args, get_origin

import msgspec

from rowlock.model.wire_hints import Place, field_hints
from rowlock.model.wire_record import Layout

Locals = Mapping[str, Any] | None
_Build = Callable[[dict[str, Any]], Any]


def layout_of(tp: Any, cls: type, place: Place, localns: Locals) -> Layout | None:
    """The layout of a record class or of a closed generic of one; None if it is no record."""
    for recognise, read in _KINDS:
        if recognise(cls):
            if get_origin(tp) is None and _open_parameters(cls):
                raise place.kind(
                    f"{cls.__name__} is an open generic (W2); say what it holds, as in {cls.__name__}[int]"
                )
            return read(tp, cls, place, localns)
    return None


def _open_parameters(cls: type) -> tuple[Any, ...]:
    pydantic: dict[str, Any] | None = getattr(cls, "__pydantic_generic_metadata__", None)
    return pydantic["parameters"] if pydantic else getattr(cls, "__parameters__", ())


# --- dataclass ---------------------------------------------------------------------------------------------


def _is_dataclass(cls: type) -> bool:
    return dataclasses.is_dataclass(cls)


def _dataclass(tp: Any, cls: Any, place: Place, localns: Locals) -> Layout:
    _decorated(cls, "__dataclass_fields__", "@dataclass", place)
    hints = field_hints(tp, place, localns)
    for name, hint in hints.items():
        if hint is dataclasses.InitVar or isinstance(hint, dataclasses.InitVar):
            raise place.under(f".{name}").kind("an InitVar is not kept, so it can not be carried (W3); make it a field")
    fields = dataclasses.fields(cls)
    for field in fields:
        _needs_init(field.name, field.init, place)
    _takes(cls, [field.name for field in fields], place)
    # A class of pydantic's dataclasses validates within its generated constructor.
    # @dataclass leaves an `__init__` that the class wrote itself; its own ones come from no file.
    generated = getattr(getattr(cls.__init__, "__code__", None), "co_filename", None) == "<string>"
    runs_code = hasattr(cls, "__post_init__") or hasattr(cls, "__pydantic_validator__") or not generated
    build = _builder(cls, object.__setattr__ if runs_code else None)
    return Layout(cls, {field.name: hints[field.name] for field in fields}, build, runs_code)


def _builder(make: Callable[..., Any], put: Callable[[Any, str, Any], None] | None) -> _Build:
    """How to make an instance of its fields' values.

    With `put`, making one may change the values, as a counter or a hash would. That ran once already, before the
    values were sent, so here they are put back as they were (W3).
    """
    if put is None:
        return lambda values: make(**values)

    def build(values: dict[str, Any]) -> Any:
        made = make(**values)
        for name, value in values.items():
            if getattr(made, name) is not value:
                put(made, name, value)
        return made

    return build


def _decorated(cls: type, mark: str, decorator: str, place: Place) -> None:
    if mark not in vars(cls):
        raise place.kind(
            f"{cls.__name__} inherits from a record and is none itself, so fields of its own would be lost (W3); "
            f"decorate it with {decorator}"
        )


def _needs_init(name: str, init: bool, place: Place) -> None:
    if not init:
        raise place.under(f".{name}").error(
            "a field with init=False can not be given back when decoding (W3); make it a property, or let init take it"
        )


def _takes(cls: type, arguments: Iterable[str], place: Place) -> None:
    """Refuse a constructor that can not be called with the fields by name: decoding will have to (J5)."""
    try:
        signature = inspect.signature(cls)
    except ValueError:  # a constructor without a readable signature: decoding will tell
        return
    try:
        signature.bind(**dict.fromkeys(arguments))
    except TypeError as exc:
        raise place.error(
            f"the constructor of {cls.__name__} does not take its fields by name ({exc}), so a value can not be "
            f"decoded (W3); use the generated one"
        ) from exc


# --- msgspec.Struct, TypedDict, attrs, pydantic --------------------------------------------------------------


def _is_struct(cls: type) -> bool:
    return issubclass(cls, msgspec.Struct)


def _struct(tp: Any, cls: Any, place: Place, localns: Locals) -> Layout:
    hints = field_hints(tp, place, localns)
    names: tuple[str, ...] = cls.__struct_fields__
    runs_code = hasattr(cls, "__post_init__")
    build = _builder(cls, msgspec.structs.force_setattr if runs_code else None)
    return Layout(cls, {name: hints[name] for name in names}, build, runs_code)


def _is_typed_dict(cls: type) -> bool:
    return dict in cls.__mro__ and hasattr(cls, "__required_keys__")


def _typed_dict(tp: Any, cls: Any, place: Place, localns: Locals) -> Layout:
    hints: dict[str, Any] = {}
    optional: set[str] = set()
    for name, written in field_hints(tp, place, localns).items():
        # The class's own list does not see qualifiers in string annotations, so they are read from the hint.
        hints[name], said = _without_qualifiers(written)
        required = name in cls.__required_keys__ if said is None else said
        if not required:
            optional.add(name)
    return Layout(cls, hints, dict, optional=frozenset(optional), is_dict=True)


def _without_qualifiers(hint: Any) -> tuple[Any, bool | None]:
    """The hint without Required, NotRequired and ReadOnly, and whether it said required."""
    origin = get_origin(hint)
    if origin is Annotated:
        inner, said = _without_qualifiers(hint.__origin__)
        return (hint, None) if inner is hint.__origin__ else (inner, said)
    if origin in (Required, NotRequired):
        inner, said = _without_qualifiers(get_args(hint)[0])
        return inner, origin is Required if said is None else said
    if str(origin).endswith(".ReadOnly"):
        return _without_qualifiers(get_args(hint)[0])
    return hint, None


def _is_attrs(cls: type) -> bool:
    return hasattr(cls, "__attrs_attrs__")


def _attrs(tp: Any, cls: Any, place: Place, localns: Locals) -> Layout:
    _decorated(cls, "__attrs_attrs__", "@attrs.define", place)
    hints = field_hints(tp, place, localns)
    attributes = cls.__attrs_attrs__
    aliases: dict[str, str] = {}
    fields: dict[str, Any] = {}
    for attribute in attributes:
        name = attribute.name
        _needs_init(name, attribute.init, place)
        aliases[name] = attribute.alias
        fields[name] = hints.get(name, attribute.type)
        if fields[name] is None:
            raise place.under(f".{name}").kind("has no type (W1); annotate it")
    _takes(cls, aliases.values(), place)

    def make(**values: Any) -> Any:
        return cls(**{aliases[name]: value for name, value in values.items()})

    runs_code = any(hasattr(cls, f"__attrs_{hook}__") for hook in ("pre_init", "post_init", "init"))
    runs_code = runs_code or any(attribute.validator or attribute.converter for attribute in attributes)
    return Layout(cls, fields, _builder(make, object.__setattr__ if runs_code else None), runs_code)


def _is_pydantic(cls: type) -> bool:
    pydantic: Any = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def _pydantic(_tp: Any, cls: Any, place: Place, localns: Locals) -> Layout:
    if not hasattr(cls, "__pydantic_fields__"):
        raise place.kind("this is a model of pydantic 1 (W1); use pydantic 2")
    if cls.__pydantic_root_model__:
        raise place.kind("a RootModel is no record (W1); give the model a field by name")
    if cls.model_config.get("extra") == "allow":
        raise place.error('extra="allow" takes fields that no schema knows (W5); declare them, or use a dict field')
    if not cls.__pydantic_complete__:
        cls.model_rebuild(raise_errors=False, _types_namespace=dict(localns) if localns else None)
    if not cls.__pydantic_complete__:
        raise place.error(
            "the model is not complete, an annotation of it can not be resolved (J5); define what it names, "
            "or call model_rebuild() before the job is declared"
        )
    hints = {
        # pydantic keeps the extras of Annotated apart; Id's marker is among them
        name: Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        for name, info in cls.__pydantic_fields__.items()
    }

    def build(values: dict[str, Any]) -> Any:
        model = cls.model_validate(values, by_name=True, by_alias=False)
        model.__dict__.update(values)  # as in `_builder`; past what freezes a model
        return model

    return Layout(cls, hints, build, runs_code=True)


_Reader = Callable[[Any, Any, Place, Locals], Layout]
_KINDS: tuple[tuple[Callable[[type], bool], _Reader], ...] = (
    (_is_dataclass, _dataclass),
    (_is_struct, _struct),
    (_is_typed_dict, _typed_dict),
    (_is_attrs, _attrs),
    (_is_pydantic, _pydantic),
)
