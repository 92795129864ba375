"""`Id[Model]`, a nominal model id (contract J9), and `Secret`, what never travels in a payload (W2)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, get_args, get_type_hints
from uuid import UUID

from rowlock.errors import DeclarationTypeError

KEY_TYPES: tuple[type, ...] = (int, str, UUID)


class Secret:
    """A text that never shows itself: not in `str`, `repr`, formatting, pickles or payloads (W2).

    `Secret("…").reveal()` gives the text back. Payloads are stored readable, so a secret is refused in them:
    pass a reference to it, a name or an id, instead.
    """

    __slots__ = ("_text",)
    _text: str

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers need not be typed
            raise TypeError(f"Secret takes a str, not {type(text).__qualname__}")
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret('**********')"

    def __str__(self) -> str:
        return "**********"

    def __format__(self, spec: str) -> str:
        return format("**********", spec)

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a rowlock.Secret is not pickled (W2); pass a reference to the secret instead")


class ModelId:
    """The run-time marker of an `Id[Model]`: says whose id a plain key value is."""

    __slots__ = ("key", "model")

    def __init__(self, model: Any, key: type | None) -> None:
        self.model = model  # a class, or its name until the field's module can resolve it
        self.key = key  # None: the model says

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelId) and (self.model, self.key) == (other.model, other.key)

    def __hash__(self) -> int:
        return hash((self.model, self.key))

    def __repr__(self) -> str:
        return f"Id[{getattr(self.model, '__qualname__', self.model)}]"


if TYPE_CHECKING:
    from typing_extensions import TypeAliasType
    from typing_extensions import TypeVar as TypeVarWithDefault

    _Model = TypeVarWithDefault("_Model")
    _Key = TypeVarWithDefault("_Key", default=int)
    Id = TypeAliasType("Id", _Key, type_params=(_Model, _Key))
else:

    class Id:
        """`Id[Article]`: the key of an `Article`, and of nothing else (J9).

        It is carried as the plain key value, and to a type checker it is the plain key type: int, unless said
        otherwise as in `Id[Article, UUID]`. At run time the key type comes from the second parameter, the mapped
        model's primary key, or an `id` annotation of the class; else it is int. The model's identity, its table's
        name, else module and qualified name, is part of the schema: ids of two models are two types (W4).
        A composite primary key is refused, and so is a second parameter that contradicts the mapped key.
        """

        def __class_getitem__(cls, parameters: Any) -> Any:
            given = parameters if isinstance(parameters, tuple) else (parameters,)
            if len(given) not in (1, 2):
                raise DeclarationTypeError(
                    f"Id takes a model and perhaps a key type, not {len(given)} parameters (J9); write Id[Model]"
                )
            model, key = given if len(given) == 2 else (given[0], None)
            if isinstance(model, TypeVar) or not isinstance(model, (type, str)):
                raise DeclarationTypeError(f"Id takes a class, not {model!r} (J9); write Id[Model]")
            if key is not None and key not in KEY_TYPES:
                raise DeclarationTypeError(
                    f"the key type of {model!r} in Id must be int, str or UUID (J9), not {key!r}"
                )
            # Libraries that validate by annotation (pydantic, msgspec) need the key type now. One that can not be
            # known yet is int to them; whether that holds is checked when the payload type is declared.
            early = key or (plausible_key(model) if isinstance(model, type) else int)
            return Annotated[early, ModelId(model, key)]

        def __new__(cls) -> NoReturn:  # noqa: D102 - it only refuses
            raise TypeError("Id is an annotation, not a value; write the plain key value")


def plausible_key(model: type) -> type:
    """The key type as far as the class shows it now: mapped key, else `id` annotation, else int. Never raises."""
    columns = _primary_key(model)
    if columns is not None and len(columns) == 1:
        found = _python_type(columns[0])
        return found if found in KEY_TYPES else int
    return _annotated_key(model) or int


def resolve_key(model: type, given: type | None) -> type:
    """The key type of a model for `Id[model, given]`. Raises ValueError with the rule that is broken."""
    columns = _primary_key(model)
    if columns is None:
        return given or _annotated_key(model) or int
    if len(columns) != 1:
        raise ValueError(
            f"{model.__qualname__} has a primary key of {len(columns)} columns, and an Id is one value (J9); "
            f"pass its parts as fields of their own"
        )
    mapped = _python_type(columns[0])
    if given is not None and mapped is not None and mapped is not given:
        raise ValueError(
            f"Id says that the key of {model.__qualname__} is {given.__name__}, its mapped primary key is "
            f"{mapped.__name__} (J9); make them agree"
        )
    key = given or mapped
    if key not in KEY_TYPES:
        shown = "of an unknown type" if key is None else key.__name__
        raise ValueError(
            f"the primary key of {model.__qualname__} is {shown}, and an Id is an int, a str or a UUID (J9); "
            f"say which one as in Id[{model.__name__}, int]"
        )
    return key


def identity(model: type) -> str:
    """Who a model is, in a schema: its table's full name, else module and qualified name (J9)."""
    table = getattr(getattr(model, "__mapper__", None), "local_table", None)
    for name in (getattr(table, "fullname", None), getattr(model, "__tablename__", None)):
        if isinstance(name, str):
            return f"table {name}"
    return f"class {model.__module__}.{model.__qualname__}"


def is_mapped(cls: type) -> bool:
    """Whether SQLAlchemy maps this class or one that it inherits from."""
    return hasattr(cls, "_sa_class_manager")


def _primary_key(model: type) -> tuple[Any, ...] | None:
    # A mapped class implies that SQLAlchemy is imported; nothing here imports it.
    if not is_mapped(model) or "sqlalchemy" not in sys.modules:
        return None
    mapper: Any = getattr(model, "__mapper__", None)
    return None if mapper is None else tuple(mapper.primary_key)


def _python_type(column: Any) -> type | None:
    try:
        found: type = column.type.python_type
    except NotImplementedError:  # a type of the user's own that does not say
        return None
    return None if found is object else found  # SQLAlchemy 2.1 says object where 2.0 raised


def _annotated_key(model: type) -> type | None:
    if not any("id" in vars(base).get("__annotations__", ()) for base in model.__mro__):
        return None
    try:
        hint: Any = get_type_hints(model).get("id")
    except Exception:  # noqa: BLE001 - some other annotation of a class that is not ours can not be resolved
        return None
    if hint not in KEY_TYPES and len(get_args(hint)) == 1:  # Mapped[UUID] of a class that is mapped later
        hint = get_args(hint)[0]
    return hint if hint in KEY_TYPES else None
