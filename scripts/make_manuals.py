#!/usr/bin/env python3
"""Manual pages and completions out of the program's own --help, so that they say what it does:

    make_manuals.py QUIRE FOLDER

FOLDER/man1/quire*.1, and completions/quire.bash, completions/_quire (zsh), completions/quire.fish.
"""

import dataclasses
import pathlib
import re
import subprocess
import sys


@dataclasses.dataclass
class Option:
    names: list  # "--max-model-len", "-q"; of a positional its name alone
    value: str  # what it takes: "INT", "" for a flag
    default: str
    words: list  # of a value the ones that there are
    help: str


@dataclasses.dataclass
class Command:
    path: list  # ["bench", "serve"]
    summary: str
    groups: dict  # of options, by title
    subcommands: dict  # summaries, by name
    footer: str


_COLUMN = 36  # where help begins, on the line of the names or, where they are too long, on the next
_VALUE = re.compile(r"(?P<kind>[A-Z]+)(?P<check>[^=]*)(?:=(?P<default>.*))?")


def parse(text, path):
    lines = text.splitlines()
    command = Command(path, lines[0], {}, {}, "")
    title = None
    for line, after in zip(lines[2:], [*lines[3:], ""]):
        if re.fullmatch(r"\S.*:", line):
            title = line[:-1]
        elif not line.strip():
            continue
        elif not line.startswith("  "):
            title = None
            command.footer += line + "\n"
        elif title == "Subcommands":
            name, summary = re.fullmatch(r"  (\S+)\s+(.*)", line).groups()
            command.subcommands[name] = summary
        elif title is not None and line.startswith(" " * _COLUMN):
            one = command.groups[title][-1]
            one.help = f"{one.help} {line.strip()}".strip()
        elif title is not None:
            command.groups.setdefault(title, []).append(option(line, after.startswith(" " * _COLUMN)))
    return command


def option(line, is_whole):
    left, said = (line, "") if is_whole else (line[:_COLUMN], line[_COLUMN:])
    names, space, value = left.strip().partition(" ")
    # How many, which others exclude it, and a size's units stand there too.
    value = re.sub(r" (?:\.\.\.|\[[^\]]*\]|(?:Excludes|Needs): .*)", "", value)
    found = _VALUE.fullmatch(value) if value else None
    if value and not found:
        raise ValueError(f"what does this option take? {line!r}")
    words = re.search(r":\{([^}]*)\}", found["check"]) if found else None
    return Option([re.sub(r"\{.*", "", name) for name in names.split(",")], found["kind"] if found else "",
                  (found["default"] or "") if found else "", words[1].split(",") if words else [], said.strip())


def read(program, path=()):
    said = subprocess.run([program, *path, "--help"], capture_output=True, text=True, check=True).stdout
    command = parse(said, list(path))
    commands = [command]
    for name in command.subcommands:
        commands += read(program, (*path, name))
    return commands


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def page_name(path):
    return "-".join(["quire", *path])


def manual(command, version):
    name = page_name(command.path)
    called = " ".join(["quire", *command.path])
    positionals = [one for one in command.groups.get("Positionals", ())]
    arguments = " ".join(f"[\\fI{roff(one.value or one.names[0])}\\fR]" for one in positionals)
    lines = [f'.TH {name.upper()} 1 "" "quire {version}" "User Commands"', ".SH NAME",
             f"{roff(name)} \\- {roff(command.summary.rstrip('.'))}", ".SH SYNOPSIS",
             f"\\fB{roff(called)}\\fR [\\fIOPTIONS\\fR] {arguments}".rstrip()]
    if command.subcommands:
        lines.append(".SH COMMANDS")
        for sub, summary in command.subcommands.items():
            lines += [".TP", f"\\fB{roff(page_name([*command.path, sub]))}\\fR(1)", roff(summary)]
    for title, options in command.groups.items():
        lines.append(f".SH {roff(title.upper())}")
        for one in options:
            names = ", ".join(f"\\fB{roff(text)}\\fR" for text in one.names)
            value = f" \\fI{roff(one.value)}\\fR" if one.value else ""
            default = f" (default: {one.default})" if one.default else ""
            words = f"; one of: {', '.join(one.words)}" if one.words else ""
            lines += [".TP", names + value, roff(one.help + words + default) or "\\&"]
    if command.footer:
        lines += [".SH NOTES", roff(command.footer.strip())]
    lines += [".SH SEE ALSO", f"\\fB{roff(page_name(command.path[:-1]))}\\fR(1)" if command.path else "\\fBquire\\-serve\\fR(1)"]
    return "\n".join(lines) + "\n"


def flags(command):
    return [name for options in command.groups.values() for one in options for name in one.names if name.startswith("-")]


def bash(commands):
    cases, values = [], []
    for command in commands:
        path = " ".join(command.path)
        words = " ".join([*command.subcommands, *flags(command)])
        cases.append(f'    "{path}") words="{words}" ;;')
        for one in (one for options in command.groups.values() for one in options if one.words):
            names = "|".join(f'"{path} {name}"' for name in one.names if name.startswith("-"))
            values.append(f'    {names}) COMPREPLY=($(compgen -W "{" ".join(one.words)}" -- "$current")); return ;;')
    subs = " ".join(sorted({" ".join(command.path) for command in commands if command.path}, key=len)).split()
    return f"""# bash completion for quire, made from its --help
_quire() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} path="" word words="" i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${{COMP_WORDS[i]}}
    case " {" ".join(dict.fromkeys(subs))} " in
      *" $word "*) if [[ -z $path || $path == bench ]]; then path="${{path:+$path }}$word"; fi ;;
    esac
  done
  case "$path ${{COMP_WORDS[COMP_CWORD - 1]}}" in
{chr(10).join(values)}
  esac
  case $path in
{chr(10).join(cases)}
  esac
  if [[ $current == -* || -z $path || $path == bench ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  else
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}}
complete -o filenames -F _quire quire
"""


def quoted(text):
    return text.replace("'", "'\\''").replace("[", "(").replace("]", ")").replace(":", " -")


def continued(lines):
    return " \\\n".join(lines)


def zsh(commands):
    functions = []
    for command in commands:
        name = "_" + page_name(command.path).replace("-", "_")
        specs = []
        for options in command.groups.values():
            for one in options:
                for flag in (text for text in one.names if text.startswith("-")):
                    value = ""
                    if one.value:
                        value = f":{one.value.lower()}:" + (f"({' '.join(one.words)})" if one.words else "_files")
                    star = "" if flag in ("-h", "--help") else "*"
                    specs.append(f"    '{star}{flag}[{quoted(one.help)}]{value}'")
        if command.subcommands:
            subs = "\n".join(f"      '{sub}:{quoted(summary)}'" for sub, summary in command.subcommands.items())
            calls = "\n".join(f"      {sub}) {name}_{sub.replace('-', '_')} ;;" for sub in command.subcommands)
            body = f"""  local state line
  local -a subcommands=(
{subs}
  )
  _arguments -C \\
{continued(specs)} \\
    '1:command:->command' '*::argument:->argument'
  case $state in
    command) _describe command subcommands ;;
    argument) case $line[1] in
{calls}
      esac ;;
  esac"""
        else:
            body = "  _arguments \\\n" + continued([*specs, "    '*:file:_files'"])
        functions.append(f"{name}() {{\n{body}\n}}\n")
    return "#compdef quire\n# zsh completion for quire, made from its --help\n" + "\n".join(functions) + '\n_quire "$@"\n'


def fish(commands):
    lines = ["# fish completion for quire, made from its --help"]
    tops = " ".join(commands[0].subcommands)
    for command in commands:
        if not command.path:
            seen = f"not __fish_seen_subcommand_from {tops}"
        elif command.subcommands:
            subs = " ".join(command.subcommands)
            seen = f"__fish_seen_subcommand_from {command.path[0]}; and not __fish_seen_subcommand_from {subs}"
        elif len(command.path) == 1:
            seen = f"__fish_seen_subcommand_from {command.path[0]}; and not __fish_seen_subcommand_from bench"
        else:
            seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.path)
        for sub, summary in command.subcommands.items():
            lines.append(f"complete -c quire -f -n '{seen}' -a {sub} -d '{fish_quoted(summary)}'")
        for options in command.groups.values():
            for one in options:
                for flag in (text for text in one.names if text.startswith("-")):
                    spelled = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                    takes = " -r" if one.value else ""
                    words = f" -f -a '{' '.join(one.words)}'" if one.words else ""
                    lines.append(f"complete -c quire -n '{seen}' {spelled}{takes}{words} -d '{fish_quoted(one.help)}'")
    return "\n".join(lines) + "\n"


def fish_quoted(text):
    return text.replace("\\", "\\\\").replace("'", "\\'")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    commands = read(program)
    for path, text in ((folder / "completions" / "quire.bash", bash(commands)), (folder / "completions" / "_quire", zsh(commands)),
                       (folder / "completions" / "quire.fish", fish(commands)),
                       *((folder / "man1" / f"{page_name(command.path)}.1", manual(command, version)) for command in commands)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
