"""What `graders.patterns` has done in a process that can be ended: checks JSON values. Needs the extra `graders`."""

from __future__ import annotations

import importlib
import json
from typing import Any

try:
    _validators, _referencing = importlib.import_module("jsonschema.validators"), importlib.import_module("referencing")
except ImportError as error:
    raise ImportError(
        f"json_schema with a schema needs jsonschema, which cannot be imported ({error}). Install it: pip install "
        "'partita[graders]'"
    ) from error


def fits(text: str, schema: Any) -> float:
    """1.0 where a text of JSON fits the schema; one that is nested too deeply to be checked does not. Raises jsonschema's
    SchemaError for a bad schema.
    """
    kind = _validators.validator_for(schema)
    kind.check_schema(schema)
    # An empty registry: nothing is fetched for a $ref.
    checker = kind(schema, registry=_referencing.Registry())
    try:
        return float(checker.is_valid(json.loads(text)))
    except RecursionError:
        return 0.0
