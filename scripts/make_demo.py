#!/usr/bin/env python3
"""Records docs/demo.gif: a real terminal in which the server is started and asked, from the first key to the last token.

    python3 -m venv /tmp/demo && /tmp/demo/bin/pip install pillow pyte openai
    /tmp/demo/bin/python scripts/make_demo.py [--quire BINARY] [--out docs/demo.gif]

A shell runs in a pseudo-terminal; keys are typed into it, and what it shows is read by a terminal emulator (pyte) and drawn (pillow)
with the times at which it came. Nothing is sped up; a pause longer than --longest-pause is shortened to that.
"""

import argparse
import fcntl
import os
import pathlib
import pty
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time

import pyte
from PIL import Image, ImageColor, ImageDraw, ImageFont

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS, LINES = 113, 27
GROUND, INK = "#16181d", "#e4e4e4"
COLOURS = {"default": INK, "black": "#555a66", "red": "#e06c75", "green": "#98c379", "brown": "#e5c07b", "blue": "#61afef",
           "magenta": "#c678dd", "cyan": "#56b6c2", "white": INK}
PROGRAM = """from openai import OpenAI
client = OpenAI(base_url="http://127.0.0.1:PORT/v1", api_key="-")
question = {"role": "user", "content": "Why is the sky blue?"}
chat = client.chat.completions.create(model="", messages=[question], stream=True, temperature=0, max_tokens=180)
for chunk in chat:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
"""


class Terminal:
    """A shell in a pseudo-terminal. `moments` has (seconds, picture of the screen) for each change."""

    def __init__(self, environment, folder):
        self.screen = pyte.Screen(COLUMNS, LINES)
        self.stream = pyte.ByteStream(self.screen)
        self.begin = time.monotonic()
        self.moments = []
        self.text = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noprofile"], environment)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))

    def look(self, seconds):
        """Reads for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.fd], [], [], min(left, 0.05))[0]:
                continue
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                return
            self.text += data
            self.stream.feed(data)
            self.note()

    def note(self):
        rows = [[(cell.data, cell.fg, cell.bold) for cell in (self.screen.buffer[y][x] for x in range(COLUMNS))] for y in range(LINES)]
        self.moments.append((time.monotonic() - self.begin, rows, (self.screen.cursor.x, self.screen.cursor.y)))

    def type(self, text):
        for letter in text:
            os.write(self.fd, letter.encode())
            self.look(0.035)
        self.look(0.3)
        os.write(self.fd, b"\r")

    def wait_for(self, words, seconds):
        """Until the shell has shown these words since now, or an error."""
        begin = len(self.text)
        end = time.monotonic() + seconds
        while words not in self.text[begin:]:
            if time.monotonic() > end:
                raise SystemExit(f"error: the terminal never showed {words!r}: {self.text[begin:][-400:]!r}")
            self.look(0.05)

    def close(self):
        os.kill(self.pid, signal.SIGHUP)
        os.waitpid(self.pid, 0)


def picture(rows, cursor, font, bold, size):
    width, height = size
    image = Image.new("RGB", (COLUMNS * width + 20, LINES * height + 20), GROUND)
    draw = ImageDraw.Draw(image)
    for y, row in enumerate(rows):
        for x, (letter, colour, is_bold) in enumerate(row):
            if letter != " ":
                draw.text((10 + x * width, 10 + y * height), letter, COLOURS.get(colour, INK), bold if is_bold else font)
    x, y = cursor
    draw.rectangle([10 + x * width, 10 + (y + 1) * height - 3, 10 + (x + 1) * width, 10 + (y + 1) * height - 1], fill=INK)
    return image


def shades():
    """One palette for all pictures: every colour in four steps from the ground."""
    ground = ImageColor.getrgb(GROUND)
    colours = [ground]
    for colour in dict.fromkeys(COLOURS.values()):
        colours += [tuple(a + (b - a) * step // 4 for a, b in zip(ground, ImageColor.getrgb(colour))) for step in (1, 2, 3, 4)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for colour in colours for channel in colour])
    return palette


def frames(moments, rate, longest_pause):
    """At most `rate` a second: the screen as it was at the end of each slice, and for how many milliseconds."""
    kept = []
    for index, (when, rows, cursor) in enumerate(moments):
        last = index + 1 == len(moments)
        until = moments[index + 1][0] if not last else when + 3.0
        if kept and when - kept[-1][0] < 1.0 / rate:
            kept[-1] = (kept[-1][0], until, rows, cursor)
        else:
            kept.append((when, until, rows, cursor))
    return [(rows, cursor, int(1000 * min(until - when, longest_pause if index + 1 < len(kept) else 3.0)))
            for index, (when, until, rows, cursor) in enumerate(kept)]


def record(options, port, folder):
    program = pathlib.Path(folder) / "ask.py"
    program.write_text(PROGRAM.replace("PORT", str(port)))
    os.symlink(options.quire, pathlib.Path(folder) / "quire")
    environment = {**os.environ, "PATH": f"{folder}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
                   "PS1": r"\[\e[32m\]$\[\e[0m\] ", "TERM": "xterm", "NO_PROXY": "127.0.0.1"}
    terminal = Terminal(environment, folder)
    terminal.look(0.5)
    terminal.type("quire serve --disable-access-log --disable-log-stats" + ("" if port == 8000 else f" --port {port}") + " &")
    terminal.wait_for(b"http://", 60)
    terminal.look(1.5)
    terminal.type("clear; cat ask.py")
    terminal.look(1.5)
    terminal.type("python ask.py")
    terminal.wait_for(b"$\x1b[0m ", 120)
    terminal.look(0.5)
    terminal.type(f"curl -s http://127.0.0.1:{port}/metrics | grep -E '^vllm:(prompt|generation)_tokens_total'")
    terminal.look(1.5)
    terminal.type("kill %1; wait")
    terminal.look(2.0)
    moments = terminal.moments
    terminal.close()
    return moments


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", type=pathlib.Path, default=ROOT / "build/release/src/cli/quire")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/demo.gif")
    parser.add_argument("--font", default="/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf")
    parser.add_argument("--size", type=int, default=13)
    parser.add_argument("--rate", type=float, default=8, help="pictures a second at most")
    parser.add_argument("--longest-pause", type=float, default=2.5)
    options = parser.parse_args()
    options.quire = options.quire.resolve()
    if not options.quire.exists():
        sys.exit(f"error: {options.quire} is not here; cmake --build --preset release --target quire")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", 8000))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        moments = record(options, port, folder)
    font = ImageFont.truetype(options.font, options.size)
    bold_path = options.font.replace("Mono.ttf", "Mono-Bold.ttf")
    bold = ImageFont.truetype(bold_path, options.size) if pathlib.Path(bold_path).exists() else font
    size = (round(font.getlength("M")), options.size + 4)
    drawn = frames(moments, options.rate, options.longest_pause)
    palette = shades()
    images = [picture(rows, cursor, font, bold, size).quantize(palette=palette, dither=Image.Dither.NONE) for rows, cursor, _ in drawn]
    durations = [max(20, duration) for _, _, duration in drawn]
    partial = options.out.with_suffix(".partial.gif")
    images[0].save(partial, save_all=True, append_images=images[1:], duration=durations, loop=0, optimize=True, disposal=1)
    if shutil.which("gifsicle"):
        subprocess.run(["gifsicle", "-O3", "-b", partial], check=False)
    partial.rename(options.out)
    print(f"{options.out}: {len(images)} pictures, {sum(durations) / 1000:.1f} s, {options.out.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
