"""What a database needs where a transaction pooler stands in between: every transaction may be in another session."""

from __future__ import annotations

from typing import Any, ClassVar


class ThroughPooler:
    """The hooks for `Database.pooler`. Most databases have no such poolers, and refuse."""

    has_transaction_poolers: ClassVar[bool] = False
    handler_session: ClassVar[str | None] = None
    """The first statement of a handler's transaction there: the settings that its session could not be given (L8)."""

    def begin_pooled(self, wait_ms: int) -> str:
        """BEGIN with the settings of `on_connect`, for this one transaction; in one round trip."""
        raise NotImplementedError

    def through_pooler(self, dbapi_connection: Any) -> None:
        """Prepares a new connection: nothing of it may be meant to last in the session."""
        raise NotImplementedError
