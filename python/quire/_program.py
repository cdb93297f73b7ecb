"""The console script `quire`: becomes the program that lies in the package, of which Python is no part."""

import os
import sys


def path() -> str:
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "quire")


def main() -> None:
    program = path()
    os.execv(program, [program, *sys.argv[1:]])
