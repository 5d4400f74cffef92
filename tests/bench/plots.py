"""plots.py: pictures of the rows by gnuplot: mt beside other trainers (peers.png) and its parts beside simple programs
(parts.png) as bars; scaling, and time and memory of geometries of models (geometry.png), with the fitted lines."""
import os
import shutil
import subprocess

from rows import fit, large
from scaling import GEOMETRIES

ROW_PX = 22                     # of a bar
OTHERS = ("fp32", "bf16", "zero3", "peers")     # parts whose peers are other trainers
SCALING = [("parameters", "step over parameters"), ("threads", "step over threads"),
           ("tokens a row", "step over row length")]


def quoted(text):
    return "'%s'" % "".join(c for c in text if c.isprintable()).replace("'", "''")


def block(name, lines):
    return "$%s << E\n%s\nE\n" % (name, "\n".join(lines))


def label(row):
    what = "%s: %s" % (row["part"], row["what"])
    return "%s%s / %s" % (what, " (%s)" % row["model"] if row["model"] else "", row["peer"])


def peers_script(path, rows):
    return bars_script(path, [r for r in rows if r["part"] in OTHERS and r["ratio"] and r["peer"][:3] != "mt "])


def parts_script(path, rows):
    return bars_script(path, [r for r in rows if r["part"] not in OTHERS])


def bars_script(path, rows):
    """Bars of speeds from above to below, in the rows' order; 1 is the peer. A triangle: the limit of this ratio"""
    rows = [r for r in rows if r["ratio"] and r["unit"].endswith("/s")]
    n = len(rows)
    if not n:
        return None
    bars = ["%d %g" % (n - i, r["ratio"]) for i, r in enumerate(rows)]
    limits = ["%d %g" % (n - i, r["bar"]) for i, r in enumerate(rows) if r["bar"] and r["bar_of"] == "ratio"]
    most = max([1, *(r["ratio"] for r in rows), *(r["bar"] for r in rows if r["bar_of"] == "ratio")])
    names = ", ".join('%s %d' % (quoted(label(r)), n - i) for i, r in enumerate(rows))
    return block("bars", bars) + block("limits", limits or ["0 -1"]) + """
set terminal pngcairo noenhanced size 1200,%d font ",10"
set output %s
set title "mt beside its peers: how many times as fast (right of the line: mt is faster)"
set style fill solid 0.8
set yrange [0.3:%g]
set xrange [0:%g]
set ytics (%s)
set grid x lc rgb "#dddddd"
set arrow from 1,0.3 to 1,%g nohead lw 2 lc rgb "#444444" front
unset key
plot $bars using ($2/2):1:($2/2):(0.35) with boxxyerror lc rgb "#3b75af", \\
     $bars using 2:1:(sprintf(" %%.2f", $2)) with labels left, \\
     $limits using 2:1 with points pt 9 ps 1.3 lc rgb "#c23b22"
""" % (120 + ROW_PX * n, quoted(path), n + 0.7, most * 1.1, names, n + 0.7)


def scaling_script(path, rows):
    return fits_script(path, rows, "scaling", SCALING, 1)


def geometry_script(path, rows):
    return fits_script(path, rows, "geometry", [
        (unit, "%s over %s" % (of, what)) for of in ("step", "memory") for what, unit, _ in GEOMETRIES], 2)


def fits_script(path, rows, part, axes, lines):
    """Points and their fitted power over each axis, in so many lines of panels"""
    script, panels = "", 0
    for i, (axis, what) in enumerate(axes):
        found = [r for r in rows if r["part"] == part and r["what"] == what and r["value"]]
        points = [(r["size"], r["value"]) for r in found]
        if len(points) < 2:
            continue
        a, b, _ = fit(points)
        panels += 1
        tics = ", ".join('"%s" %d' % (large(x), x) for x, _ in points)
        low, high = min(y for _, y in points), max(y for _, y in points)
        script += block("points%d" % i, ["%g %g" % p for p in points]) + """
set title "%s"
set xlabel "%s"
set xtics (%s)
set xrange [%g:%g]
set yrange [%g:%g]
plot $points%d using 1:2 with points pt 7 ps 1.4 lc rgb "#3b75af" title "measured, %s", \\
     exp(%g) * x ** %g with lines lw 2 lc rgb "#c23b22" title "power %.2f"
""" % (what, axis, tics, points[0][0] / 1.3, points[-1][0] * 1.3, low / 2, high * 4, i, found[0]["unit"], b, a, a)
    if not panels:
        return None
    return """set terminal pngcairo noenhanced size %d,%d font ",11"
set output %s
set logscale xy
set format y "%%g"
set grid lc rgb "#dddddd"
set key top center
set multiplot layout %d,%d
%sunset multiplot
""" % (500 * panels // lines, 400 * lines, quoted(path), lines, panels // lines, script)


def plot(directory, rows):
    """Draw what the rows have; returns the pictures' names, or None without gnuplot"""
    if not shutil.which("gnuplot"):
        return None
    os.makedirs(directory, exist_ok=True)
    drawn = []
    for name, script_of in (("peers.png", peers_script), ("parts.png", parts_script), ("scaling.png", scaling_script),
                            ("geometry.png", geometry_script)):
        path = os.path.join(directory, name)
        script = script_of(path, rows)
        if script:
            done = subprocess.run(["gnuplot"], input=script, text=True, capture_output=True)
            if done.returncode:
                raise RuntimeError("gnuplot: " + done.stderr.strip())
            drawn.append(path)
    return drawn
