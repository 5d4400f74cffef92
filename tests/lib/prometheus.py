"""prometheus.py FILE: check a file in Prometheus's text exposition format 0.0.4 by its grammar, and print its samples
as a JSON list of [name, labels, value]."""
import json
import re
import sys

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\n"])*"'
SAMPLE = re.compile(r"(%s)(?:\{(%s(?:,%s)*)\})? (\S+)\Z" % (NAME, LABEL, LABEL))
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def value_of(escaped):
    return re.sub(r"\\.", lambda m: UNESCAPED[m.group()], escaped)


text = open(sys.argv[1], encoding="utf-8").read()
assert text.endswith("\n"), "the last line has no newline"
family, helped, types, samples = None, set(), {}, []
for line in text[:-1].split("\n"):
    if line.startswith("# HELP "):
        family = line.split(" ", 3)[2]
        assert len(line.split(" ", 3)[3]) > 5, line
        assert family not in helped, "a second HELP of " + family
        helped.add(family)
    elif line.startswith("# TYPE "):
        _, _, name, kind = line.split(" ")
        assert name == family and name not in types, line
        assert kind in ("gauge", "counter"), line
        assert name.endswith("_total") == (kind == "counter"), line
        types[name] = kind
    else:
        match = SAMPLE.match(line)
        assert match, "no sample: " + line
        name, labels, number = match.groups()
        assert name == family and name in types, "not under its HELP and TYPE: " + line
        pairs = re.findall(r'([a-zA-Z0-9_]+)="((?:[^"\\]|\\.)*)"', labels or "")
        assert len({p[0] for p in pairs}) == len(pairs), "a label twice: " + line
        samples.append([name, {k: value_of(v) for k, v in pairs}, float(number)])
keys = [json.dumps(s[:2], sort_keys=True) for s in samples]
assert len(set(keys)) == len(keys), "a sample twice"
assert {s[0] for s in samples} == set(types), "a metric without samples"
json.dump(samples, sys.stdout)
