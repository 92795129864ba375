"""The input types of a job, the present one and earlier ones (J10): which payloads it can decode, and how."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar, cast

from rowlock.errors import DeclarationError
from rowlock.model.policy import Upgrade
from rowlock.model.wire import NO_INPUT, WireType, wire_type

In = TypeVar("In")


class Inputs(Generic[In]):
    """The present wire type and the accepted earlier ones, by fingerprint."""

    def __init__(self, present: WireType[In], job: str) -> None:
        self.present = present
        self._job = job
        self._earlier: dict[str, tuple[WireType[Any], Upgrade]] = {}

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The present one's first (W4)."""
        return (self.present.fingerprint, *self._earlier)

    def knows(self, fingerprint: str) -> bool:
        """Whether a payload stored under `fingerprint` can be decoded."""
        return fingerprint == self.present.fingerprint or fingerprint in self._earlier

    def accept(self, earlier: Iterable[tuple[Any, Upgrade]], *, names: Mapping[str, Any]) -> None:
        """Learn earlier types; each has a schema of its own. Raises DeclarationError."""
        for old, upgrade in earlier:
            if inspect.iscoroutinefunction(upgrade):
                raise DeclarationError(f"{self._job}: accepts has an async function as an upgrade (J10); make it sync")
            wire: WireType[Any] = (
                NO_INPUT if old is None else wire_type(old, where=f"{self._job}: accepts", localns=names)
            )
            if self.knows(wire.fingerprint):
                raise DeclarationError(
                    f"{self._job}: accepts names {wire.name}, whose schema equals that of the present input or of "
                    f"another accepted one (J10, W4): its records are decoded already; remove the pair"
                )
            self._earlier[wire.fingerprint] = (wire, upgrade)

    def decode(self, fingerprint: str, payload: bytes | str) -> In:
        """The input of a stored payload, an earlier type brought to the present one."""
        if fingerprint == self.present.fingerprint:
            return self.present.decode(payload)
        wire, upgrade = self._earlier[fingerprint]
        upgraded = upgrade(wire.decode(payload))
        self._require_present(upgraded, upgrade)
        return cast("In", upgraded)

    def _require_present(self, value: object, upgrade: Upgrade) -> None:
        present: type = self.present.python_type or type(None)
        if issubclass(present, dict):  # a TypedDict, whose instances are plain dicts
            present = dict
        if not isinstance(value, present):
            raise TypeError(
                f"{self._job}: the upgrade {getattr(upgrade, '__name__', 'function')!r} answered "
                f"{type(value).__name__}, not {self.present.name} (J10); return the present input type"
            )
