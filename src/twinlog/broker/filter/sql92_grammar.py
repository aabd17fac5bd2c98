"""Grammar and meaning of SQL92 filter expressions. Pure.

Corresponds to RocketMQ's SelectorParser and its expression classes; the rules are told in `sql92`,
which loads this with the first expression: a broker without one starts sooner.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import LarkError, UnexpectedInput, VisitError

from twinlog.broker.filter.sql92 import EvaluationError, Evaluator, FilterSyntaxError, Properties
from twinlog.broker.filter.subscription import EXPRESSION_LENGTH_MAX
from twinlog.runtime.numbers import number_or_none

TOKENS_MAX = 1000  # Each takes 25 us of the loop at worst.
NESTING_MAX = 64  # Evaluation recurses: deep brackets must not reach the interpreter's limit.

_GRAMMAR = r"""
    ?start: or_expression
    ?or_expression: and_expression (_OR and_expression)*
    ?and_expression: equality (_AND equality)*
    ?equality: comparison
        | equality EQUAL comparison        -> equal
        | equality UNEQUAL comparison      -> unequal
        | equality _IS _NULL               -> is_null
        | equality _IS _NOT _NULL          -> is_not_null
    ?comparison: unary
        | comparison ORDER unary                     -> order
        | comparison _BETWEEN unary _AND unary       -> between
        | comparison _NOT _BETWEEN unary _AND unary  -> not_between
        | comparison _IN "(" strings ")"             -> contained
        | comparison _NOT _IN "(" strings ")"        -> not_contained
    ?unary: _NOT unary -> negation
        | "-" unary    -> minus
        | "+" unary    -> plus
        | primary
    ?primary: "(" or_expression ")"
        | STRING  -> string
        | FLOAT   -> float
        | INTEGER -> integer
        | _TRUE   -> true
        | _FALSE  -> false
        | _NULL   -> null
        | NAME    -> property
    strings: STRING ("," STRING)*

    EQUAL: "="
    UNEQUAL.2: "<>"
    ORDER: ">=" | "<=" | ">" | "<"
    _AND.2: /and(?![\w$])/i
    _OR.2: /or(?![\w$])/i
    _NOT.2: /not(?![\w$])/i
    _BETWEEN.2: /between(?![\w$])/i
    _IN.2: /in(?![\w$])/i
    _IS.2: /is(?![\w$])/i
    _NULL.2: /null(?![\w$])/i
    _TRUE.2: /true(?![\w$])/i
    _FALSE.2: /false(?![\w$])/i
    NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
    STRING: /'([^']|'')*'/
    FLOAT.3: /([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
    INTEGER: /[0-9]+[lL]?/
    COMMENT: /--[^\n\r]*/ | /\/\*([^*]|\*(?!\/))*\*\//
    %ignore COMMENT
    %ignore /[ \t\f\r\n]+/
"""


class Long(int):
    """A 64-bit integer literal: a property that meets it must be a 64-bit integer."""


@dataclass(frozen=True, slots=True)
class _Node:
    """A compiled piece. `is_boolean` and `is_constant` are what the checks at parse time need."""

    evaluate: Evaluator
    is_boolean: bool = False
    is_constant: bool = False
    is_property: bool = False
    value: Any = None


def _constant(value: Any, *, is_boolean: bool = False) -> _Node:
    return _Node(lambda _: value, is_boolean=is_boolean, is_constant=True, value=value)


_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_DOUBLE_TEXT = re.compile(
    r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)"
)


def _to_integer(text: str, allowed: range) -> int:
    number = number_or_none(text, allowed[0], allowed[-1])
    if number is None:
        kind = "int" if allowed is _INT32 else "long"
        raise EvaluationError(f"'{text[:64]}' is not a {kind}")
    return number


def _to_double(text: str) -> float:
    trimmed = text.strip()
    if not _DOUBLE_TEXT.fullmatch(trimmed):
        raise EvaluationError(f"'{text[:64]}' is not a number")
    return float(trimmed.rstrip("fFdD") if trimmed[-1:] in "fFdD" else trimmed)


def _like(text: str, other: Any) -> Any:
    """Convert a property's text to the type of what it is compared with."""
    if isinstance(other, bool):
        return text.lower() == "true"
    if isinstance(other, Long):
        return _to_integer(text, _INT64)
    if isinstance(other, int):
        return _to_integer(text, _INT32)
    return _to_double(text)


def _compare(left: Any, right: Any) -> int:
    """-1, 0 or 1; values of kinds that cannot meet are unequal, as in the original."""
    if isinstance(left, bool) and isinstance(right, str):
        raise EvaluationError("a boolean literal on the left cannot be compared with a property")
    if isinstance(left, str) and not isinstance(right, str):
        left = _like(left, right)
    elif isinstance(right, str) and not isinstance(left, str):
        right = _like(right, left)
    elif isinstance(left, bool) != isinstance(right, bool):
        return -1
    return int(left > right) - int(left < right)


def _equals(left: _Node, right: _Node) -> _Node:
    def evaluate(properties: Properties) -> bool | None:
        one, other = left.evaluate(properties), right.evaluate(properties)
        if one is None or other is None:
            if one is None and other is not None:
                return None
            return one is other
        return _compare(one, other) == 0

    return _Node(evaluate, is_boolean=True)


_ORDERS: dict[str, Callable[[int], bool]] = {
    ">": lambda sign: sign > 0,
    ">=": lambda sign: sign >= 0,
    "<": lambda sign: sign < 0,
    "<=": lambda sign: sign <= 0,
}


def _ordered(left: _Node, operator: str, right: _Node) -> _Node:
    for operand in (left, right):
        is_number = isinstance(operand.value, (int, float)) and not isinstance(operand.value, bool)
        if operand.is_boolean or (operand.is_constant and not is_number):
            raise FilterSyntaxError(f"only numbers and properties can be compared with {operator}")
    holds = _ORDERS[operator]

    def evaluate(properties: Properties) -> bool | None:
        one, other = left.evaluate(properties), right.evaluate(properties)
        if one is None or other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            one, other = _to_double(one), _to_double(other)
        return holds(_compare(one, other))

    return _Node(evaluate, is_boolean=True)


def _as_boolean(node: _Node) -> _Node:
    if node.is_boolean:
        return node
    if node.is_property:
        # A bare property is a string, never TRUE: the original delivers nothing for it.
        def cast_property(properties: Properties) -> bool | None:
            return None if node.evaluate(properties) is None else False

        return _Node(cast_property, is_boolean=True)
    raise FilterSyntaxError("the expression does not result in a boolean value")


def _not(operand: _Node) -> _Node:
    def evaluate(properties: Properties) -> bool | None:
        value: bool | None = operand.evaluate(properties)
        return None if value is None else not value

    return _Node(evaluate, is_boolean=True)


def _junction(nodes: list[_Node], deciding: bool) -> _Node:
    """AND (`deciding` is False) or OR (True): one deciding operand settles it, else null wins."""
    evaluators = [_as_boolean(node).evaluate for node in nodes]

    def evaluate(properties: Properties) -> bool | None:
        result: bool | None = not deciding
        for evaluator in evaluators:
            value: bool | None = evaluator(properties)
            if value is deciding:
                return deciding
            if value is None:
                result = None
        return result

    return _Node(evaluate, is_boolean=True)


@v_args(inline=True)
class _Compiler(Transformer[Token, _Node]):
    """Turns the tree into closures, bottom up, and notes which properties are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def string(self, token: Token) -> _Node:
        return _constant(_text(token))

    def integer(self, token: Token) -> _Node:
        number = number_or_none(token.rstrip("lL"))
        if number is None:
            raise FilterSyntaxError(f"{token[:64]} does not fit into 64 bits")
        return _constant(number if number in _INT32 else Long(number))

    def float(self, token: Token) -> _Node:
        number = float(token)
        if number == float("inf"):
            raise FilterSyntaxError(f"{token} is greater than the largest double")
        return _constant(number)

    def true(self) -> _Node:
        return _constant(True, is_boolean=True)

    def false(self) -> _Node:
        return _constant(False, is_boolean=True)

    def null(self) -> _Node:
        return _constant(None, is_boolean=True)

    def property(self, token: Token) -> _Node:
        name = str(token)
        self.names.add(name)
        return _Node(lambda properties: properties.get(name), is_property=True)

    def strings(self, *tokens: Token) -> frozenset[str]:
        return frozenset(_text(token) for token in tokens)

    def minus(self, operand: _Node) -> _Node:
        if operand.is_constant and not isinstance(operand.value, (bool, str, type(None))):
            kind = type(operand.value)
            return _constant(kind(-operand.value))

        def evaluate(properties: Properties) -> Any:
            value = operand.evaluate(properties)
            return -value if isinstance(value, (int, float)) else None

        return _Node(evaluate)

    def plus(self, operand: _Node) -> _Node:
        return operand

    def negation(self, operand: _Node) -> _Node:
        return _not(_as_boolean(operand))

    def equal(self, left: _Node, _: Token, right: _Node) -> _Node:
        for operand in (left, right):
            if operand.is_constant and operand.value is None:
                raise FilterSyntaxError("NULL cannot be compared; use IS NULL")
        is_mixed = left.is_constant and left.is_boolean and not right.is_boolean
        if is_mixed and right.is_constant:
            raise FilterSyntaxError("a boolean cannot be compared with another kind of literal")
        return _equals(left, right)

    def unequal(self, left: _Node, operator: Token, right: _Node) -> _Node:
        return _not(self.equal(left, operator, right))

    def is_null(self, operand: _Node) -> _Node:
        return _equals(operand, _constant(None))

    def is_not_null(self, operand: _Node) -> _Node:
        return _not(_equals(operand, _constant(None)))

    def order(self, left: _Node, operator: Token, right: _Node) -> _Node:
        return _ordered(left, str(operator), right)

    def between(self, value: _Node, low: _Node, high: _Node) -> _Node:
        parts = [_ordered(value, ">=", low), _ordered(value, "<=", high)]
        if low.is_constant and high.is_constant and low.value > high.value:
            raise FilterSyntaxError(f"BETWEEN needs {low.value} <= {high.value}")
        return _junction(parts, deciding=False)

    def not_between(self, value: _Node, low: _Node, high: _Node) -> _Node:
        return _junction([_ordered(value, "<", low), _ordered(value, ">", high)], deciding=True)

    def contained(self, operand: _Node, values: frozenset[str]) -> _Node:
        if not operand.is_property:
            raise FilterSyntaxError("IN needs a property on its left")

        def evaluate(properties: Properties) -> bool | None:
            value = operand.evaluate(properties)
            return None if value is None else value in values

        return _Node(evaluate, is_boolean=True)

    def not_contained(self, operand: _Node, values: frozenset[str]) -> _Node:
        return _not(self.contained(operand, values))

    def and_expression(self, *nodes: _Node) -> _Node:
        return _junction(list(nodes), deciding=False)

    def or_expression(self, *nodes: _Node) -> _Node:
        return _junction(list(nodes), deciding=True)


def _text(token: Token) -> str:
    return token[1:-1].replace("''", "'")


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", maybe_placeholders=False)


def compile_expression(expression: str) -> tuple[Evaluator, set[str]]:
    """What evaluates the expression, and the properties that it asks for."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise FilterSyntaxError(f"the expression is longer than {EXPRESSION_LENGTH_MAX} characters")
    if sum(1 for _ in _TOKEN.finditer(expression)) > TOKENS_MAX:
        raise FilterSyntaxError(f"the expression has more than {TOKENS_MAX} words and signs")
    if _depth(expression) > NESTING_MAX:
        raise FilterSyntaxError(f"brackets and NOT are nested deeper than {NESTING_MAX}")
    try:
        compiler = _Compiler()
        node = compiler.transform(_parser().parse(expression))
    except UnexpectedInput as error:
        where = f"line {error.line}, column {error.column}"
        raise FilterSyntaxError(f"cannot parse '{expression}' at {where}") from error
    except VisitError as error:
        raise error.orig_exc from error
    except LarkError as error:
        raise FilterSyntaxError(f"cannot parse '{expression}': {error}") from error
    return _as_boolean(node).evaluate, compiler.names


_TOKEN = re.compile(r"'(?:[^']|'')*+'?|[\w$.]+|[^\s\w]")
_NESTING = re.compile(r"'(?:[^']|'')*'|(\()|(\))|(\bnot\b|-(?!-))", re.IGNORECASE)


def _depth(expression: str) -> int:
    depth = deepest = 0
    for match in _NESTING.finditer(expression):
        if match.group(1) or match.group(3):
            depth += 1
            deepest = max(deepest, depth)
        elif match.group(2):
            depth -= 1
    return deepest
