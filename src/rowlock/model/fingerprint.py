"""Schema -> SHA-256 (contract W4).

A schema is a JSON value that the shapes of `wire_shapes` describe themselves with. It names what matters on the
wire and nothing else, so its canonical text is the same for every spelling of one schema.
"""

from __future__ import annotations

import hashlib
import json
from typing import TypeAlias

Schema: TypeAlias = "str | int | list[Schema] | dict[str, Schema]"

# Part of what is hashed. It changes only if the wire form of some type changes, because then payloads written by
# an older version can no longer be read under the same schema.
_FORMAT = b"rowlock-wire-1\n"


def fingerprint(schema: Schema) -> str:
    """The fingerprint of a schema: 64 hexadecimal digits (W4).

    Objects are hashed with sorted names and without white space, in ASCII: neither the order of fields nor the
    Python version shows in it.
    """
    text = json.dumps(schema, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(_FORMAT + text.encode("ascii")).hexdigest()
