r"""The command of a cron line: what cron hands to a shell, as an argv that needs none where that is the same.

Cron first takes `%` apart (an unescaped one ends the command, the rest is its standard input, further ones
are line ends; `\%` is a percent sign), then gives the rest to `SHELL -c`. A text without any shell syntax
means the same split into words. Any doubt is decided in favour of the shell.
"""

import re
from dataclasses import dataclass

from duly.config.shell_words import shell_words

# What cron and shells take for a blank. Python's own idea of one (str.split, str.strip) has a dozen more.
BLANK = " \t"
BLANKS = re.compile(r"[ \t]+")
_QUOTED = re.compile(r"""'[^']*'|"[^"$`\\]*\"""")
_SYNTAX = re.compile(r"""[|&;<>()$`\\"'*?\[\]{}~#\r\n]""")
# Words that only a shell knows. Those that are programs as well (echo, test, true) do the same as such.
_SHELL_WORDS = frozenset(
    (
        *(
            ".",
            ":",
            "!",
            "alias",
            "builtin",
            "case",
            "cd",
            "command",
            "declare",
            "do",
            "eval",
            "exec",
            "exit",
        ),
        *("export", "for", "function", "hash", "if", "let", "local", "read", "readonly", "return", "select"),
        *("set", "shift", "source", "time", "times", "trap", "type", "typeset", "ulimit", "umask", "unset"),
        *("until", "wait", "while"),
    )
)
_PLAIN_SHELLS = frozenset(["sh", "ash", "bash", "dash", "ksh", "mksh", "zsh"])
_WORD = re.compile(r"[A-Za-z0-9_./+-]+")
_WRAPPERS = frozenset(
    ["nice", "ionice", "env", "sudo", "nohup", "timeout", "flock", "chronic", "time", "sh", "bash", "python"]
)


@dataclass(frozen=True, slots=True)
class Command:
    """An argv, and whether a shell had to be written into it."""

    argv: tuple[str, ...]
    needs_shell: bool


def command_of(text: str, shell: str) -> Command:
    """What cron would run for a line's command part."""
    script, stdin = percent_split(text)
    shell = shell.strip() or "/bin/sh"
    if not script.strip(BLANK):
        return Command((), needs_shell=False)
    if stdin is not None:
        return Command((shell, "-c", _with_stdin(script, stdin)), needs_shell=True)
    if shell.rpartition("/")[2] in _PLAIN_SHELLS and not uses_shell(script):
        argv = tuple(shell_words(script))
        # Neither `""` nor a no-break space names a program for duly; what it does is the shell's affair.
        if argv[0].strip():
            return Command(argv, needs_shell=False)
    return Command((shell, "-c", script), needs_shell=True)


def first_word(text: str) -> tuple[str, str]:
    """The text up to its first blank, and what follows the blanks."""
    word, *rest = BLANKS.split(text, maxsplit=1)
    return word, "".join(rest)


def percent_split(text: str) -> tuple[str, str | None]:
    """The command, and the text for its standard input if there is any."""
    script: list[str] = []
    is_escaped = False
    for position, char in enumerate(text):
        if char == "%" and not is_escaped:
            return "".join(script), _input(text[position + 1 :]) or None
        if char == "%":
            script[-1] = char
        else:
            script.append(char)
        is_escaped = char == "\\" and not is_escaped
    return "".join(script), None


def _input(text: str) -> str:
    return re.sub(r"\\%|%", lambda found: "%" if found[0] == "\\%" else "\n", text)


def _with_stdin(script: str, stdin: str) -> str:
    """The script with its standard input as a here-document, whose end is a line that it does not have."""
    end, lines = "END", frozenset(stdin.split("\n"))
    while end in lines:
        end += "_"
    return f"{{ {script}\n}} <<'{end}'\n{stdin.removesuffix(chr(10))}\n{end}"


def uses_shell(script: str) -> bool:
    """Whether the text means something to a shell beyond words and quotes."""
    bare = _QUOTED.sub("q", script)
    if _SYNTAX.search(bare):
        return True
    first, _ = first_word(script.strip(BLANK))
    # Shells differ in what their own echo and printf make of a backslash.
    return "=" in first or first in _SHELL_WORDS or (first in ("echo", "printf") and "\\" in script)


def name_of(text: str, line: int) -> str:
    """A name for the job: that of its program, as far as it can be told."""
    script, _ = percent_split(text)
    for part in re.split(r"&&|\|\||[;|]", script):
        for word in BLANKS.split(part.strip(BLANK)):
            if not _WORD.fullmatch(word) or word.startswith("-") or word.isdigit():
                continue
            name = re.sub(r"\.(sh|py|pl|rb|php|js)$", "", word.rstrip("/").rpartition("/")[2])
            if name in ("cd", "exec", "test", "export", "source", "."):
                break
            if name.strip("._+-") and name not in _WRAPPERS and not name.startswith("python"):
                return name.strip("._+-")[:64]
    return f"job-{line}"
