"""Python's jsonschema as the judge of structured answers: other code than made them, with checks of formats of our own."""

import datetime
import ipaddress
import json
import re
import uuid

import jsonschema


def formats():
    """Checks of our own, for what jsonschema only checks with further packages."""
    checker = jsonschema.FormatChecker(formats=())

    def parses(parse):
        def check(text):
            try:
                parse(text)
            except ValueError:
                return False
            return True

        return check

    def date_time(text):
        if text[10:11] != "T":
            raise ValueError(text)
        return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))

    def uuid_of(text):
        return uuid.UUID(text) if len(text) == 36 else uuid.UUID("")

    checks = {
        "date": parses(datetime.date.fromisoformat),
        "time": parses(lambda text: date_time("2000-01-01T" + text)),
        "date-time": parses(date_time),
        "ipv4": parses(ipaddress.IPv4Address),
        "ipv6": parses(ipaddress.IPv6Address),
        "uuid": parses(uuid_of),
        "email": lambda text: re.fullmatch(r"[^@\s\"\\]{1,64}@([a-z0-9-]{1,63}\.)+[a-z]{2,}", text),
        "hostname": lambda text: len(text) < 254 and re.fullmatch(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*", text),
        "uri": lambda text: re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s\"<>\\^`{|}]*", text),
        "uri-reference": lambda text: re.fullmatch(r"[^\s\"<>\\^`{|}]*", text),
        "uri-template": lambda text: re.fullmatch(r"([^\s\"<>\\^`{|}]|\{[^{}\s]+\})*", text),
        "json-pointer": lambda text: re.fullmatch(r"(/([^/~]|~[01])*)*", text, re.S),
        "relative-json-pointer": lambda text: re.fullmatch(r"(0|[1-9]\d*)(#|(/([^/~]|~[01])*)*)", text, re.S),
        "duration": lambda text: re.fullmatch(r"P(?!$)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?|P\d+W", text),
    }
    checks["idn-email"] = checks["email"]
    for name, check in checks.items():
        checker.checks(name)(lambda value, check=check: not isinstance(value, str) or bool(check(value)))
    for bits in (32, 64):
        checker.checks(f"int{bits}")(lambda value, end=2 ** (bits - 1): not isinstance(value, int) or -end <= value < end)
    return checker


def python_pattern(pattern):
    """ECMA-262's notation where Python has another."""
    pattern = re.sub(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([0-9a-fA-F]{4})",
                     lambda m: bytes.fromhex(m[1] + m[2]).decode("utf-16-be"), pattern)
    pattern = re.sub(r"\(\?<(\w+)>", r"(?P<\1>", pattern)
    pattern = re.sub(r"\\c([A-Za-z])", lambda m: f"\\x{ord(m[1]) % 32:02x}", pattern)
    return pattern.replace("\\/", "/")


def for_python(schema):
    if isinstance(schema, list):
        return [for_python(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for name, value in schema.items():
        if name in ("enum", "const"):
            out[name] = value
        elif name == "pattern" and isinstance(value, str):
            out[name] = python_pattern(value)
        else:
            out[name] = for_python(value)
    return out


def strict_json(text):
    def constant(name):
        raise ValueError(name)

    value = json.loads(text, parse_constant=constant)
    text.encode()  # no lone surrogates
    json.dumps(value, ensure_ascii=False).encode()
    return value


def validator_of(schema):
    return jsonschema.Draft202012Validator(for_python(schema), format_checker=formats())


def fault(validator, text):
    """Why the text is no answer of the validator's schema, in a line; None where it is one."""
    try:
        validator.validate(strict_json(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).splitlines()[0]
    return None


def schemas_of(path):
    """The lines of a file of schemas. split("\n"): a schema may have other characters that Python takes for ends of lines."""
    return [line for line in path.read_text().split("\n") if line]
