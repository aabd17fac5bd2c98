"""SQL92 filter expressions: parsed once per subscription, evaluated on a message's properties.

Corresponds to RocketMQ's filter module (SelectorParser and its expression classes). Pure.

Values are what Java would hold: a property is a string or null, a literal is a 32-bit integer, a
64-bit integer, a double, a string, TRUE, FALSE or NULL. A string that meets a number is converted
to exactly that kind of number; where that fails the expression has no value for this message, and
the message is not delivered. Logic is three-valued: comparing null gives null.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from twinlog.message.properties import decode_properties
from twinlog.store.filter import PropertyPairs

EXPRESSION_TYPE = "SQL92"
VERDICT_COUNT_MAX = 4096  # Of one expression: a few hundred kilobytes.

Properties = Mapping[str, str]
Evaluator = Callable[[Properties], Any]


class FilterSyntaxError(ValueError):
    """The expression does not parse, or compares what can never be compared."""


parser_loaded = threading.Event()


class EvaluationError(ValueError):
    """The expression has no value for this message."""


class Sql92Filter:
    """One compiled expression; what the store asks of each record (store/filter.py)."""

    __slots__ = ("_evaluate", "_find", "_verdicts", "expression", "pairs")

    needs_properties = True

    def __init__(self, expression: str) -> None:
        self.expression = expression
        # Most brokers never see a SQL92 subscription, and the parser takes its time to load.
        from twinlog.broker.filter.sql92_grammar import compile_expression

        self._evaluate, names = compile_expression(expression)
        pattern = b"|".join(re.escape(name.encode()) for name in sorted(names))
        # Of a stored property string the pairs that are asked for, each with the separator before
        # it: what a pattern begins with is searched for fast. Empty values do not count.
        self._find = re.compile(rb"\x02(?:" + pattern + rb")\x01[^\x02]+").findall
        # The verdict follows from these pairs alone, and few different ones come again and again.
        self._verdicts: dict[bytes, bool] = {}
        encoded = tuple(name.encode() for name in sorted(names))
        self.pairs = PropertyPairs(encoded, self._verdicts, self._judge)

    def matches(self, properties: Properties) -> bool:
        """True only when the expression is TRUE: null and errors deliver nothing."""
        try:
            return self._evaluate(properties) is True
        except (EvaluationError, ArithmeticError, ValueError, TypeError):
            return False  # One message that cannot be judged does not stop those behind it.

    def matches_tags_code(self, tags_code: int) -> bool:
        """The properties decide."""
        return True

    def matches_properties(self, properties: bytes) -> bool:
        """The same as `matches` for a property string as it is stored."""
        pairs = b"".join(self._find(b"\x02" + properties))
        verdict = self._verdicts.get(pairs)
        return self._judge(pairs) if verdict is None else verdict

    def _judge(self, pairs: bytes) -> bool:
        if len(self._verdicts) >= VERDICT_COUNT_MAX:
            self._verdicts.clear()
        verdict = self._verdicts[pairs] = self.matches(decode_properties(pairs))
        return verdict


def load_parser() -> None:
    """Load and make the parser; with the first expression it would hold up the loop."""
    compile_filter(EXPRESSION_TYPE, "a = 1")
    parser_loaded.set()


def compile_filter(kind: str | None, expression: str) -> Sql92Filter:
    """The filter of an expression that is not of tags. Raises FilterSyntaxError."""
    if kind != EXPRESSION_TYPE:
        raise FilterSyntaxError(f"no such type of expression: {kind}")
    return Sql92Filter(expression)
