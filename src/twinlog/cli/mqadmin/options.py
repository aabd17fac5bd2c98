"""Option parsing as Apache's PosixParser does it: `-t x`, `-tx`, `--topic x`, `--topic=x`."""

from __future__ import annotations

from collections.abc import Sequence

from twinlog.cli.admin.tls import OPTIONS
from twinlog.cli.exit_codes import USAGE, CommandError
from twinlog.cli.lazy import nearest
from twinlog.cli.mqadmin.verbs import Option, Verb

COMMON = (Option("n", "namesrvAddr", True, False), Option("h", "help", False, False))
# Ours, by their long names alone: every letter is some verb's.
OWN = (
    Option("context", "context", True, False),
    Option("access-key", "access-key", True, False),
    Option("secret-key", "secret-key", True, False),
    Option("output", "output", True, False),
    *(Option(name, name, bool(metavar), False) for name, (metavar, _) in OPTIONS.items()),
)


class Values:
    """The options of one call, by letter; text is trimmed as Apache trims it."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def __contains__(self, letter: str) -> bool:
        return letter in self._values

    def get(self, letter: str) -> str | None:
        return self._values.get(letter)

    def text(self, letter: str, default: str = "") -> str:
        return self._values.get(letter, default)

    def number(self, letter: str, default: int) -> int:
        text = self._values.get(letter)
        if text is None:
            return default
        try:
            return int(text)
        except ValueError:
            raise CommandError(f"-{letter} {text}: not a number", USAGE) from None

    def flag(self, letter: str, default: bool = False) -> bool:
        """Java's Boolean.parseBoolean: everything but `true` is false."""
        text = self._values.get(letter)
        return default if text is None else text.lower() == "true"


def parse(verb: Verb, args: Sequence[str]) -> Values:
    """The options of `args`. Raises with the verb, the option and the nearest known one."""
    by_letter = {option.letter: option for option in (*verb.options, *COMMON)}
    by_name = {option.name: option for option in (*OWN, *verb.options, *COMMON)}
    values: dict[str, str] = {}
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if word in ("-o", "-ojson") and (word == "-ojson" or rest[:1] == ["json"]):
            # No verb's own -o means anything with that value.
            rest = rest[word == "-o" :]
            values["output"] = "json"
            continue
        if word.startswith("--"):
            name, separator, value = word[2:].partition("=")
            option = by_name.get(name)
            if option is None:
                raise _unknown(verb, word, list(by_name))
            given = value if separator else None
        elif word.startswith("-") and len(word) > 1:
            letter = word[1:] if word[1:] in by_letter else word[1]  # `-bn` is one option.
            option = by_letter.get(letter)
            if option is None:
                raise _unknown(verb, word, list(by_name))
            given = word[1 + len(letter) :] or None
            if given is not None and not option.has_value:
                rest.insert(0, f"-{given}")  # `-ml` is `-m -l`.
                given = None
        else:
            raise CommandError(
                f"mqadmin {verb.name}: {word!r} is not an option", USAGE, hint=_see(verb)
            )
        values[option.letter] = _value(verb, option, given, rest)
    for option in verb.options:
        if option.is_required and option.letter not in values and "h" not in values:
            text = f"mqadmin {verb.name}: -{option.letter} ({option.name}) is missing"
            raise CommandError(text, USAGE, hint=_see(verb))
    return Values(values)


def wants_json(options: Values) -> bool:
    output = options.text("output", "text")
    if output not in ("json", "text"):
        raise CommandError(f"--output {output}: json or text are known", USAGE)
    return output == "json"


def _value(verb: Verb, option: Option, given: str | None, rest: list[str]) -> str:
    if not option.has_value:
        return "true"
    if given is not None:
        return given.strip()
    if not rest:
        text = f"mqadmin {verb.name}: -{option.letter} ({option.name}) needs a value"
        raise CommandError(text, USAGE, hint=_see(verb))
    return rest.pop(0).strip()


def _unknown(verb: Verb, word: str, names: list[str]) -> CommandError:
    if word.startswith("-o"):
        return CommandError(f"mqadmin {verb.name}: {word} takes json and nothing else", USAGE)
    hint = nearest(word.lstrip("-"), names) or _see(verb)
    return CommandError(f"mqadmin {verb.name}: unknown option {word}", USAGE, hint=hint)


def _see(verb: Verb) -> str:
    return f"see: mqadmin help {verb.name}"


def help_text(verb: Verb) -> str:
    """The options of a verb, as text."""
    shown = [*COMMON, *verb.options]
    head = "".join(
        f" -{o.letter}{' <arg>' if o.has_value else ''}" if o.is_required
        else f" [-{o.letter}{' <arg>' if o.has_value else ''}]"
        for o in shown
    )  # fmt: skip
    lines = [f"usage: mqadmin {verb.name}{head}", f"{verb.text}."]
    for option in sorted(shown, key=lambda o: o.letter.lower()):
        value = " <arg>" if option.has_value else ""
        need = "  (required)" if option.is_required else ""
        lines.append(f" -{option.letter},--{option.name}{value}{need}")
    lines.append(f"With every verb: -o json, {', '.join(f'--{option.name}' for option in OWN)}")
    return "\n".join(lines)
