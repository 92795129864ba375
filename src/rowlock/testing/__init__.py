"""The testing kit (X): cases on databases of their own, a clock that tests move, drains through the production code."""

from rowlock.errors import KitError, KitTypeError, KitValueError
from rowlock.testing.case import Failure, TestApp
from rowlock.testing.finding import EnqueuedRecord
from rowlock.testing.handlers import context, fault

__all__ = ["EnqueuedRecord", "Failure", "KitError", "KitTypeError", "KitValueError", "TestApp", "context", "fault"]
