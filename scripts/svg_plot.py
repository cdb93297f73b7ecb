"""Plots as SVG text, without any package: bars in groups and lines over a number. Imported, never run.

    import svg_plot
    text = svg_plot.bars("Decode", "tokens/s", ["1", "8"], {"quire": [1, 2], "other": [3, None]}, marks=[4, 5])
    text = svg_plot.lines("Decode", "sequences", "tokens/s", {"quire": [(1, 10.0), (8, 50.0)]})

Colours follow the order of the series; None leaves a bar out. Light and dark viewers both see a white ground.
"""

import math
from xml.sax.saxutils import escape

COLOURS = ("#1b6ca8", "#d1495b", "#edae49", "#66a182", "#8d99ae", "#5f4b8b", "#c06014", "#2e4057")
WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 44, 78


def nice_step(largest, ticks=6):
    """A step of 1, 2 or 5 times a power of ten that divides [0, largest] into at most `ticks` parts."""
    if largest <= 0:
        return 1.0
    rough = largest / ticks
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def short(value):
    return f"{value:.10g}" if value >= 10 or value == int(value) else f"{value:.2g}"


class Canvas:
    def __init__(self, title, unit, largest):
        self.step = nice_step(largest)
        self.top_value = self.step * max(1, math.ceil(largest / self.step - 1e-9))
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
                      'font-family="sans-serif" font-size="12" fill="#222">',
                      f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
        self.text(WIDTH / 2, 20, title, anchor="middle", size=15)
        self.text(LEFT, TOP - 8, unit, anchor="end")
        value = 0.0
        while value <= self.top_value * (1 + 1e-9):
            y = self.y(value)
            self.line(LEFT, y, WIDTH - RIGHT, y, "#ddd")
            self.text(LEFT - 6, y + 4, short(value), anchor="end")
            value += self.step

    def y(self, value):
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / self.top_value

    def text(self, x, y, content, anchor="start", size=12):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(content)}</text>')

    def line(self, x1, y1, x2, y2, colour, width=1.0, dashes=""):
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
                          f'stroke-width="{width}"{dashed}/>')

    def box(self, x, y, width, height, colour, hint=""):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}">'
                          f"<title>{escape(hint)}</title></rect>")

    def legend(self, names, marked=""):
        x, y = LEFT, HEIGHT - 30
        for index, name in enumerate([*names, *([marked] if marked else [])]):
            wide = 26 + 7 * len(name)
            if x + wide > WIDTH - RIGHT:
                x, y = LEFT, y + 18
            if name == marked and index == len(names):
                self.line(x, y - 4, x + 14, y - 4, "#222", 2, "4 2")
            else:
                self.box(x, y - 10, 12, 12, COLOURS[index % len(COLOURS)])
            self.text(x + 18, y, name)
            x += wide

    def finish(self):
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def bars(title, unit, groups, series, marks=None, mark_name="limit"):
    """One group of bars for each of `groups`; series: name -> a value or None for each group. marks: a dashed line each."""
    marks = marks or [None] * len(groups)
    values = [value for row in series.values() for value in row if value is not None]
    drawn = [mark for mark in marks if mark is not None]
    canvas = Canvas(title, unit, max([*values, *drawn], default=0.0))
    group_width = (WIDTH - LEFT - RIGHT) / max(1, len(groups))
    bar_width = group_width * 0.8 / max(1, len(series))
    for place, group in enumerate(groups):
        begin = LEFT + group_width * (place + 0.1)
        for index, (name, row) in enumerate(series.items()):
            if row[place] is None:
                continue
            y = canvas.y(row[place])
            canvas.box(begin + index * bar_width, y, bar_width * 0.92, HEIGHT - BOTTOM - y,
                       COLOURS[index % len(COLOURS)], f"{name}, {group}: {row[place]:.4g} {unit}")
            canvas.text(begin + (index + 0.46) * bar_width, y - 3, f"{row[place]:.3g}" if row[place] < 1000
                        else f"{row[place]:.0f}", anchor="middle", size=9)
        if marks[place] is not None:
            y = canvas.y(marks[place])
            canvas.line(begin - 4, y, begin + group_width * 0.8 + 4, y, "#222", 2, "4 2")
        canvas.text(begin + group_width * 0.4, HEIGHT - BOTTOM + 18, group, anchor="middle")
    canvas.legend(list(series), mark_name if drawn else "")
    return canvas.finish()


def lines(title, x_name, unit, series, logarithmic_x=False):
    """series: name -> [(x, value)]. One mark a point, joined in the order of x."""
    points = {name: sorted(row) for name, row in series.items() if row}
    xs = sorted({x for row in points.values() for x, _ in row})
    scale = math.log if logarithmic_x else float
    low, high = (scale(xs[0]), scale(xs[-1])) if xs else (0.0, 1.0)
    canvas = Canvas(title, unit, max((value for row in points.values() for _, value in row), default=0.0))

    def place(x):
        return LEFT + 20 + (WIDTH - LEFT - RIGHT - 40) * ((scale(x) - low) / (high - low) if high > low else 0.5)

    for x in xs if len(xs) <= 12 else xs[::math.ceil(len(xs) / 12)]:
        canvas.text(place(x), HEIGHT - BOTTOM + 16, short(x), anchor="middle")
    canvas.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 32, x_name, anchor="middle")
    for index, name in enumerate(series):
        row = points.get(name, [])
        colour = COLOURS[index % len(COLOURS)]
        for (x1, value1), (x2, value2) in zip(row, row[1:]):
            canvas.line(place(x1), canvas.y(value1), place(x2), canvas.y(value2), colour, 2)
        for x, value in row:
            canvas.parts.append(f'<circle cx="{place(x):.1f}" cy="{canvas.y(value):.1f}" r="3" fill="{colour}">'
                                f"<title>{escape(f'{name}, {short(x)}: {value:.4g} {unit}')}</title></circle>")
    canvas.legend(list(series))
    return canvas.finish()


def spans(title, unit, rows):
    """A time line: rows: name -> [(what, begin, end)], drawn to one scale from 0. Equal names of spans have one colour."""
    longest = max((end for row in rows.values() for _, _, end in row), default=1.0)
    step = nice_step(longest, 10)
    height = 34
    canvas = Canvas.__new__(Canvas)
    bottom = TOP + height * len(rows)
    total = bottom + 84
    canvas.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" font-family="sans-serif" font-size="12" '
                    'fill="#222">', f'<rect width="{WIDTH}" height="{total}" fill="#fff"/>']
    canvas.text(WIDTH / 2, 20, title, anchor="middle", size=15)
    left = 30 + 7 * max(map(len, rows), default=0)
    place = lambda value: left + (WIDTH - RIGHT - left) * value / longest
    value = 0.0
    while value <= longest * (1 + 1e-9):
        canvas.line(place(value), TOP, place(value), bottom, "#ddd")
        canvas.text(place(value), bottom + 16, short(value), anchor="middle")
        value += step
    canvas.text((left + WIDTH) / 2, bottom + 34, unit, anchor="middle")
    names = list(dict.fromkeys(what for row in rows.values() for what, _, _ in row))
    for index, (name, row) in enumerate(rows.items()):
        y = TOP + height * index
        canvas.text(left - 8, y + 21, name, anchor="end")
        for what, begin, end in row:
            canvas.box(place(begin), y + 6, max(place(end) - place(begin) - 0.6, 0.4), height - 12,
                       COLOURS[names.index(what) % len(COLOURS)], f"{what}: {end - begin:.4g} {unit}")
            if place(end) - place(begin) > 7 * len(what) + 6:
                canvas.parts.append(f'<text x="{place(begin) + 5:.1f}" y="{y + 21}" fill="#fff">{escape(what)}</text>')
    x, y = left, bottom + 56
    for index, name in enumerate(names):
        wide = 30 + 7 * len(name)
        if x + wide > WIDTH - RIGHT:
            x, y = left, y + 18
        canvas.box(x, y - 10, 12, 12, COLOURS[index % len(COLOURS)])
        canvas.text(x + 18, y, name)
        x += wide
    return canvas.finish()
