"""rows.py: the result of a bench: one list of rows, all with the same keys, as a table and as JSON.

A row's value may have been measured several times: the value is the median, low and high are the ends. So are the
peer's. ratio is value / peer_value. Where both sides took turns, ratio_low and ratio_high are of single turns; of
many pairs, ratio is the median and they are its 95 % interval.
"""
import json
import math
import os
import statistics

KEYS = ("part", "what", "model", "size", "size_unit", "value", "unit", "higher_is_better", "low", "high", "n", "peer",
        "peer_value", "ratio", "ratio_low", "ratio_high", "share", "bar_of", "bar_sign", "bar", "met", "residual",
        "others", "note")


def number(x):
    return "" if x is None else "%.0f" % x if abs(x) >= 1000 else "%.3f" % x if 1 <= abs(x) < 10 else "%.3g" % x


def large(x):
    """123456789 as 123 M"""
    for unit, name in ((1e9, " G"), (1e6, " M")):
        if x >= unit:
            return "%.3g%s" % (x / unit, name)
    return "%d" % x


def middle(x):
    """Median of a list; a number as it is"""
    return statistics.median(x) if isinstance(x, list) else x


def fit(points):
    """Least squares of log y = a log x + b: a, b, and the root mean square of what is left of log y"""
    x, y = ([math.log(p[i]) for p in points] for i in (0, 1))
    mean_x, mean_y = statistics.mean(x), statistics.mean(y)
    a = sum((u - mean_x) * (v - mean_y) for u, v in zip(x, y)) / sum((u - mean_x) ** 2 for u in x)
    b = mean_y - a * mean_x
    return a, b, math.sqrt(statistics.mean((v - a * u - b) ** 2 for u, v in zip(x, y)))


def judge(row, bar):
    """bar: "ratio >= 1.35", "value <= 8.1\""""
    row["bar_of"], row["bar_sign"], limit = bar.split()
    row["bar"] = float(limit)
    got = row[row["bar_of"]]
    if got is not None:
        row["met"] = got >= row["bar"] if row["bar_sign"] == ">=" else got <= row["bar"]


def median_interval(x):
    """What the median lies between with a probability of at least 95 %: two of the values, which are at least 6"""
    x, n = sorted(x), len(x)
    below, outside = 0, 0.0         # outside: the probability that fewer than `below` of n values are less than it
    while below < (n - 1) // 2 and outside + math.comb(n, below) / 2**n <= 0.025:
        outside += math.comb(n, below) / 2**n
        below += 1
    first = max(0, below - 1)
    return x[first], x[n - 1 - first]


def make_row(part, what, value, unit, peer=None, peer_value=None, turns=None, pairs=False, bar=None, **more):
    """value, peer_value: a number, a list of them, or None if there is none. turns: ratios of single turns; without
    them, lists of the same length are taken for turns. pairs: value and peer_value were measured side by side, often:
    the ratio is the median of the pairs', with its 95 % interval."""
    row = dict.fromkeys(KEYS)
    row.update(part=part, what=what, value=middle(value), unit=unit, peer=peer, peer_value=middle(peer_value), **more)
    if row["higher_is_better"] is None:
        row["higher_is_better"] = "/s" in unit
    if isinstance(value, list):
        row.update(low=min(value), high=max(value), n=len(value))
        if turns is None and isinstance(peer_value, list) and len(peer_value) == len(value) and all(peer_value):
            turns = [a / b for a, b in zip(value, peer_value)]
    if row["value"] is not None and row["peer_value"]:
        row["ratio"] = row["value"] / row["peer_value"]
    if turns and len(turns) > 1:
        row.update(ratio_low=min(turns), ratio_high=max(turns))
    if turns and pairs:
        low, high = median_interval(turns)
        row.update(ratio=middle(turns), ratio_low=low, ratio_high=high)
    if bar:
        judge(row, bar)
    if set(row) != set(KEYS):
        raise RuntimeError("a row has other keys: %s" % sorted(set(row) ^ set(KEYS)))
    return row


HEADS = ("part", "what", "model, size", "value", "unit", "peer", "peer's", "ratio", "spread", "of peak", "bar", "met",
         "others", "")
RIGHT = ("value", "peer's", "ratio", "of peak", "others")


def spread(row):
    if row["residual"] is not None:
        return "residual %.0f %%" % (100 * row["residual"])
    if row["n"] == 1:
        return ""
    if row["ratio_low"] is not None:
        return "%s to %s" % (number(row["ratio_low"]), number(row["ratio_high"]))
    return "" if row["low"] is None else "%s to %s" % (number(row["low"]), number(row["high"]))


def cells(row):
    size = "" if row["size"] is None else "%s %s" % (large(row["size"]), row["size_unit"])
    bar = "" if row["bar"] is None else "%s %s %s" % (row["bar_of"], row["bar_sign"], "%g" % row["bar"])
    return (row["part"], row["what"], ", ".join(x for x in (row["model"], size) if x), number(row["value"]),
            row["unit"], row["peer"] or "", number(row["peer_value"]), number(row["ratio"]), spread(row),
            number(row["share"]), bar,
            "" if row["met"] is None else "yes" if row["met"] else "NO",
            "" if row["others"] is None else "%.0f %%" % (100 * row["others"]), row["note"] or "")


def table(rows):
    """One aligned table; `others` is the share of the cores that other programs had"""
    lines = [HEADS, *map(cells, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADS))]
    right = [head in RIGHT for head in HEADS]
    padded = [[text.rjust(w) if r else text.ljust(w) for text, w, r in zip(line, widths, right)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def line(row):
    """A row while the bench is running"""
    text = "  ".join("%s" % x for x in cells(row)[1:5] if x)
    if row["peer_value"] is not None:
        text += ";  %s: %s, ratio %s" % (row["peer"], number(row["peer_value"]), number(row["ratio"]))
    if spread(row):
        text += "  (%s)" % spread(row)
    if row["share"]:
        text += "  %s of the peak" % number(row["share"])
    if row["others"]:
        text += "  others had %.0f %% of the cores" % (100 * row["others"])
    return text + ("  %s" % row["note"] if row["note"] else "")


def write_json(path, header, rows):
    """Replace the file at once: an interrupted bench leaves the rows that it has"""
    with open(path + ".new", "w") as f:
        f.write('{"header": %s,\n"rows": [\n%s\n]}\n' % (json.dumps(header), ",\n".join(map(json.dumps, rows))))
    os.rename(path + ".new", path)
