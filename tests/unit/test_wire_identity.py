"""Ids of models, and secrets."""

from __future__ import annotations

import copy
import pickle
import uuid
from dataclasses import dataclass, make_dataclass
from typing import Any, get_args

import pydantic
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, registry

from rowlock.errors import DeclarationError, DeclarationTypeError
from rowlock.model.identity import Id, Secret
from rowlock.model.wire import wire_type


class Base(DeclarativeBase):
    pass


class Article(Base):
    __tablename__ = "article"
    __table_args__ = {"schema": "news"}
    number: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True)


class Photo(Base):
    __tablename__ = "photo"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)


class Country(Base):
    __tablename__ = "country"
    code: Mapped[str] = mapped_column(sa.String(2), primary_key=True)


class Reading(Base):
    __tablename__ = "reading"
    at: Mapped[float] = mapped_column(primary_key=True)


class Opaque(sa.types.UserDefinedType[Any]):
    cache_ok = True


class Thing(Base):
    __tablename__ = "thing"
    id: Mapped[Any] = mapped_column(Opaque(), primary_key=True)


class Plain:
    pass


class PlainUUID:
    id: uuid.UUID


class PlainOther:
    id: float


class Titled:
    __tablename__ = "titled"
    id: str


def id_schema(annotation: Any) -> Any:
    from rowlock.model.wire_compile import Compiler
    from rowlock.model.wire_hints import Place

    record = make_dataclass("Holder", [("x", annotation)])
    schema: Any = Compiler(None).shape(record, Place("job t", "Holder")).schema(())
    return schema[1]["x"]


@pytest.mark.parametrize(
    ("annotation", "identity", "key"),
    [
        (Id[Article], "table news.article", "int"),
        (Id[Photo], "table photo", "uuid"),
        (Id[Photo, uuid.UUID], "table photo", "uuid"),
        (Id[Country], "table country", "str"),
        (Id[Thing, str], "table thing", "str"),
        (Id[Plain], f"class {__name__}.Plain", "int"),
        (Id[Plain, str], f"class {__name__}.Plain", "str"),
        (Id[PlainUUID], f"class {__name__}.PlainUUID", "uuid"),
        (Id[PlainOther], f"class {__name__}.PlainOther", "int"),
        (Id[Titled], "table titled", "str"),
    ],
    ids=str,
)
def test_whose_id_and_of_which_type(annotation: Any, identity: str, key: str) -> None:  # contract: J9
    assert id_schema(annotation) == ["id", identity, key]
    assert get_args(annotation)[0] is {"int": int, "str": str, "uuid": uuid.UUID}[key]


def test_an_id_is_carried_as_the_plain_key() -> None:  # contract: J9
    @dataclass
    class Task:
        article: Id[Article]
        photos: list[Id[Photo, uuid.UUID]]
        country: Id[Country, str] | None = None

    wire = wire_type(Task, where="job t")
    value = Task(5, [uuid.UUID(int=6)], "nl")
    text = wire.encode(value)
    assert text == '{"article":5,"photos":["00000000-0000-0000-0000-000000000006"],"country":"nl"}'
    assert wire.decode(text) == value


def test_pydantic_sees_the_key_type() -> None:  # contract: J9
    class Task(pydantic.BaseModel):
        photo: Id[Photo, uuid.UUID]
        more: list[Id[Article]]

    wire = wire_type(Task, where="job t")
    value = Task(photo=uuid.UUID(int=1), more=[2])
    assert wire.decode(wire.encode(value)) == value
    other = make_dataclass("T", [("photo", Id[Photo]), ("more", list[Id[Article]])])
    assert wire.fingerprint == wire_type(other, where="job t").fingerprint


@dataclass
class Forward:
    later: Id["Later"]  # noqa: UP037 - quoted within the annotation


class Later:
    id: str


def test_a_model_may_be_named() -> None:  # contract: J9
    named = wire_type(Forward, where="job t")
    assert named.fingerprint == wire_type(make_dataclass("X", [("later", Id[Later])]), where="job t").fingerprint


def test_a_class_mapped_later_is_judged_when_the_job_is_declared() -> None:  # contract: J9
    class Lazy:
        pass

    record = make_dataclass("Holder", [("x", Id[Lazy])])
    table = sa.Table("lazy", sa.MetaData(), sa.Column("id", sa.String, primary_key=True))
    registry().map_imperatively(Lazy, table)
    wire = wire_type(record, where="job t")
    assert wire.encode(record("a")) == '{"x":"a"}'


@pytest.mark.parametrize(("annotation", "rule"), [(Id[Reading], "is float"), (Id[Thing], "of an unknown type")])
def test_a_key_that_is_no_id_is_refused(annotation: Any, rule: str) -> None:  # contract: J9
    with pytest.raises(DeclarationError, match=rule):
        id_schema(annotation)


@pytest.mark.parametrize("parameters", [3, (Plain, float), (Plain, int, str), None])
def test_misuse_of_id(parameters: Any) -> None:  # contract: J9
    with pytest.raises(DeclarationTypeError):
        Id[parameters]


def test_id_is_no_value() -> None:
    with pytest.raises(TypeError, match="annotation"):
        Id()  # type: ignore[operator]


def test_a_secret_does_not_show_itself() -> None:  # contract: W2, S6
    secret = Secret("hunter2")
    shown = [str(secret), repr(secret), f"{secret}", f"{secret:>30}", "%s %r" % (secret, secret), repr([secret])]  # noqa: UP031
    assert not any("hunter2" in text for text in shown)
    assert secret.reveal() == "hunter2"
    assert secret == Secret("hunter2") != Secret("x")
    assert secret != "hunter2"
    assert len({secret, Secret("hunter2")}) == 1
    assert copy.deepcopy([secret])[0] is copy.copy(secret) is secret
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(secret)
    with pytest.raises(TypeError, match="takes a str, not int"):
        Secret(5)  # type: ignore[arg-type]
