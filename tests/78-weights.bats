# Records with weights, and groups of documents: the loss is the sum of weight x nll over the number of targets.
load helpers
load lib/golden

CASE=$GOLDEN/qwen3
STEP="--batch 6 --micro 2 --seq 32 --lr 1e-3 --wait 5"

# Sixty documents of 1 to 60 tokens, a third of them context only, as plain records in $T/plain; with a weight for each
# token in $T/NAME, by a Python expression of the document's number i and its token's t: weighted NAME EXPR
weighted() {
	PYTHONPATH=$GOLDEN python3 - "$T" "$@" <<-'END2'
		import random, sys
		from records import CONTEXT_ONLY, Weighted, write_records
		draw = random.Random(3)
		documents = [[draw.randrange(90) | (CONTEXT_ONLY if draw.random() < 0.3 else 0)
		    for _ in range(draw.choice((1, 2, 5, 16, 31, 32, 33, 60)))] for _ in range(60)]
		where, name, weight = sys.argv[1:]
		write_records(where + "/plain", documents)
		write_records(f"{where}/{name}", [Weighted(d, [float(eval(weight, {"i": i, "t": t})) for t in range(len(d))])
		    for i, d in enumerate(documents)])
	END2
}

trained_on() { trained "$1" "$T/$1" $(with "$STEP" "${@:2}"); } # NAME [OPTIONS]: on $T/NAME
same() { cmp "$T/$1.m" "$T/$2.m" && cmp "$T/$1.state" "$T/$2.state"; }

@test "weights of 1 give the bits of plain records: metrics, weights and optimizer's state" {
	weighted ones 1
	for DTYPE in fp32 bf16; do
		trained_on plain
		trained_on ones
		same plain ones
	done
	DEVICE=chaos:3 trained_on ones
	DEVICE=chaos:3 trained_on plain
	same plain ones
}

@test "20 steps on records with weights from -1 to 2 match PyTorch's, in fp32" { golden llama-weights; }
@test "20 steps on records with weights from -1 to 2 differ from PyTorch's only by rounding, in bf16" {
	golden llama-weights --bf16
}

@test "weight 0 gives the gradient of context only, over more targets; all weights 0 give none at all" {
	weighted zeros "(i + t) % 3 > 0"
	PYTHONPATH=$GOLDEN python3 - "$T" <<-'END2'
		import sys
		from records import CONTEXT_ONLY, Weighted, read_records, write_records
		documents = read_records(sys.argv[1] + "/zeros")
		write_records(sys.argv[1] + "/masked", [[x if w else x | CONTEXT_ONLY for x, w in zip(d, d.weights)]
		    for d in documents])
		write_records(sys.argv[1] + "/none", [Weighted(d, [0.0] * len(d)) for d in documents])
	END2
	for name in zeros masked none; do trained_on $name --steps 1 --clip 0; done
	python3 - "$T"/{zeros,masked,none}.m <<-'END2'
		import json, sys
		zeros, masked, none = (json.loads(open(f).readline()) for f in sys.argv[1:])
		assert zeros["tokens"] == none["tokens"] > masked["tokens"] > 20, (zeros, masked, none)
		for key in "loss", "grad_norm":
		    a, b = (m[key] * m["tokens"] for m in (zeros, masked))
		    assert abs(a - b) <= 1e-6 * b, (key, a, b)
		assert none["loss"] == none["grad_norm"] == 0, none
	END2
}

# bats test_tags=slow
@test "two mt-streams give the bits of one, chaos those of the cores; other micro-batches the same up to rounding" {
	weighted some "((7 * i + t) % 25) / 8 - 1"
	trained_on some
	cp "$T/some.m" "$T/one.m"
	cp "$T/some.state" "$T/one.state"
	STREAMS=2 trained_on some
	same some one
	DEVICE=chaos:5 trained_on some
	same some one
	for micro in 1 3 6; do
		trained_on some --micro $micro
		python3 - "$T/one.m" "$T/some.m" <<-'END2'
			import json, sys
			for a, b in zip(*([json.loads(l) for l in open(f)] for f in sys.argv[1:]), strict=True):
			    assert all(abs(a[k] - b[k]) <= 1e-5 * abs(a[k]) for k in ("loss", "grad_norm")), (a, b)
		END2
	done
}

@test "steps with and without weights in one run, and evaluation by weights" {
	weighted some "((7 * i + t) % 25) / 8 - 1"
	weighted ones 1
	weighted twos 2
	{ cat "$T/plain" "$T/some" "$T/plain"; } >"$T/mixed"
	{ cat "$T/ones" "$T/some" "$T/ones"; } >"$T/groups"
	trained_on mixed --steps 8
	trained_on groups --steps 8
	same mixed groups
	for e in plain ones twos; do
		trained_on mixed --steps 1 --eval "$T/$e" --eval-every 1
		sed "s/.*\"eval_loss\"/{\"eval_loss\"/" "$T/mixed.raw" >"$T/eval.$e"
	done
	cmp "$T/eval.plain" "$T/eval.ones"
	python3 - "$T"/eval.{ones,twos} <<-'END2'
		import json, sys
		for a, b in zip(*([json.loads(l) for l in open(f)] for f in sys.argv[1:]), strict=True):
		    assert b["eval_loss"] == 2 * a["eval_loss"], (a, b)
	END2
}

@test "a run goes on with the same weights, and refuses input whose weights have changed" {
	weighted some "t % 5 - 1"
	weighted other "t % 5 - 1 if i or t != 1 else 0.5"
	make_run "$CASE/model"
	start_stages
	# shellcheck disable=SC2086
	mt-step "$RUN" $STEP --steps 3 --until 2 <"$T/some" >"$T/m" 2>"$T/step.err"
	# shellcheck disable=SC2086
	exits 65 mt-step "$RUN" $STEP --steps 3 <"$T/other" >"$T/no" 2>"$T/err"
	grep -q "records differ" "$T/err"
	# shellcheck disable=SC2086
	exits 65 mt-step "$RUN" $STEP --steps 3 <"$T/plain" >"$T/no" 2>"$T/err"
	[ ! -s "$T/no" ]
	# shellcheck disable=SC2086
	mt-step "$RUN" $STEP --steps 3 <"$T/some" >>"$T/m" 2>"$T/step.err"
	arrays "$RUN" >"$T/parts.state"
	timeless "$T/m" >"$T/parts.m"
	mt-store rm "$RUN" --force
	DTYPE=bf16 trained_on some
	same some parts
}

# Records of all kinds: plain ones, groups of one document and of several, with weights and without; with "pairs" also
# pairs, and documents with what the losses of pairs and pg need
random_groups() { # FILE SEED [VOCABULARY [pairs]]
	PYTHONPATH=$GOLDEN python3 - "$1" "$2" "${3:-1000}" "${4:-}" <<-'END2'
		import random, sys
		from records import CONTEXT_ONLY, Group, Weighted, write_records
		draw, vocab = random.Random(int(sys.argv[2])), int(sys.argv[3])
		def document(most):
		    d = [draw.randrange(vocab) | (CONTEXT_ONLY if draw.random() < 0.2 else 0)
		        for _ in range(draw.randint(1, most))]
		    return Weighted(d, [draw.randint(-8, 16) / 8 for _ in d]) if draw.random() < 0.6 else d
		def rich(side, most):
		    d = [draw.randrange(vocab) for _ in range(draw.randint(2, most))]
		    weights, old = ([draw.randint(-8, 8) / 8 for _ in d] if draw.random() < 0.5 else None for _ in "ab")
		    ref = draw.randint(-99, 0) / 8 if side is None or draw.random() < 0.7 else None
		    return Weighted(d, weights, side, ref, old)
		def pair():
		    return Group(rich(side, 14) for side in draw.sample((1, 2), 2))
		records = [Group(document(12) for _ in range(draw.randint(1, 4))) if draw.random() < 0.5 else document(40)
		    for _ in range(80)]
		if sys.argv[4]:
		    records = [draw.choice((r, pair(), rich(None, 40))) for r in records]
		write_records(sys.argv[1], records)
	END2
}

# bats test_tags=slow
@test "a group is in one row, as documents beside each other with their parts; one that is too long is left out" {
	for seed in 1 2 3 4 5 6; do
		random_groups "$T/r" $seed 1000 pairs
		for how in {docs,none},{split,drop,truncate}; do
			step-pack "$how" 24 "$T/r" >"$T/rows"
			PYTHONPATH=$GOLDEN python3 - "$T/r" "$T/rows" "$how" <<-'END2'
				import json, sys
				from records import Group, cut, ids, read_records, target_olds, target_weights, targets
				pack, long = sys.argv[3].split(",")
				seq, rows, room = 24, [], 0
				for r in read_records(sys.argv[1]):
				    several = isinstance(r, Group) and len(r) > 1
				    documents = r if isinstance(r, Group) else [r]
				    n = sum(map(len, documents))
				    if n > seq and (several or long == "drop"):
				        continue
				    whole = [documents] if several else [[p] for p in cut(documents[0], seq)]
				    whole = whole[:1] if long == "truncate" else whole
				    for pieces in whole:
				        size = sum(map(len, pieces))
				        if pack == "none" or n > seq and len(whole) > 1 or size > room:
				            rows.append([])
				            room = seq
				        rows[-1] += pieces
				        room -= size
				made = [json.loads(line) for line in open(sys.argv[2])]
				assert len(made) == len(rows) > 15, (len(made), len(rows))
				for row, m in zip(rows, made):
				    pad = seq - sum(map(len, row))
				    assert m["tokens"] == sum(map(ids, row), []) + [0] * pad, (row, m)
				    want = sum(map(targets, row), [])
				    assert m["targets"] == [-1 if t is None else t for t in want] + [-1] * pad, (row, m)
				    starts = [at for i, p in enumerate(row) for at in [sum(map(len, row[:i]))] * len(p)]
				    assert m["starts"] == starts + [seq - pad] * pad, (row, m)
				    weights = sum(map(target_weights, row), [])
				    weights = [1 if t is None else w for t, w in zip(want, weights)] + [1] * pad
				    old = [0 if t is None else w for t, w in zip(want, sum(map(target_olds, row), []))] + [0] * pad
				    assert m.get("old", [0] * seq) == old, (row, m)
				    documents = [[starts[sum(map(len, row[:i]))], getattr(p, "side", 0) or 0, getattr(p, "ref", 0) or 0]
				        for i, p in enumerate(row)]
				    rich = any(side or ref for _, side, ref in documents)
				    assert m.get("documents", None) == (documents if rich else None), (row, m)
				    sides = [side for _, side, _ in documents if side]
				    assert all({a, b} == {1, 2} for a, b in zip(sides[::2], sides[1::2], strict=True)), (row, m)
				    assert m.get("weights", weights) == weights and ("weights" in m or set(weights) == {1}), (row, m)
			END2
			step-pack "$how" 24 "$T/r" resume
		done
	done
}

@test "mt-step says how many groups are dropped, and that --pack concat takes none" {
	random_groups "$T/r" 1 90
	make_run "$CASE/model"
	start_stages
	mt-step "$RUN" --steps 9 --batch 6 --seq 16 --lr 1e-3 --wait 5 <"$T/r" >"$T/m" 2>"$T/err"
	grep -q "records are groups longer than --seq 16 and are dropped" "$T/err"
	fails_with 65 sh -c 'mt-step --count --batch 1 --seq 16 --pack concat <"$0"' "$T/r"
	grep -q "is a group, and --pack concat keeps no record together" "$T/fails.err"
	mt-step --count --batch 1 --seq 16 <"$T/r" | grep -q '"documents": 80, '
}

# bats test_tags=slow
@test "a group that is not valid is one line and 65, and nothing is trained" {
	local G=$((1 << 31)) nan=$((0x7fc00000)) inf=$((0xff800000)) one=$((0x3f800000))
	make_run "$CASE/model"
	start_stages
	hostile() { # LINE WORD...
		words "$T/bad" "${@:2}"
		# shellcheck disable=SC2086
		exits 65 mt-step "$RUN" $STEP --steps 3 <"$T/bad" >"$T/m" 2>"$T/err"
		[ ! -s "$T/m" ] && [ "$(wc -l <"$T/err")" = 1 ]
		grep -q -- "stdin: $1" "$T/err"
		fails_with 65 sh -c 'mt-step --count --batch 1 --seq 16 <"$0"' "$T/bad"
		fails_with 65 mt-feed --check --shuffle 1 "$T/bad"
		exits 65 mt-feed - <"$T/bad" >"$T/out" 2>"$T/err"
		grep -q -- "stdin: $1" "$T/err"
	}
	hostile "record 1: is empty" $G
	hostile "record 1: input ends after 2 of its 9 elements" $((G + 9)) 1 0
	hostile "record 1: input ends after 0 of its 1073741824 elements" $((G + (1 << 30)))
	hostile "record 1: count 3221225473 is above 1073741824" $((G + (1 << 30) + 1)) 1 0
	hostile "record 2, document 1: its group ends inside its head" 1 5 $((G + 1)) 7
	hostile "record 1, document 2: its group ends inside its head" $((G + 4)) 1 0 5 7
	hostile "record 1, document 1: is empty" $((G + 2)) 0 0
	hostile "record 1, document 1: its 3 elements need more than the group's 4 words" $((G + 4)) 3 0 1 2
	hostile "record 1, document 1: its 3 elements need more than the group's 7 words" $((G + 7)) 3 8 1 2 3 $one $one
	hostile "record 1, document 1: its 4294967295 elements need more" $((G + 3)) -1 0 1
	hostile "record 1, document 1: its 2147483649 elements need more" $((G + 3)) $((G + 1)) 8 1
	hostile "record 1, document 1: its group ends inside its head" $((G + 3)) 1 10 1
	hostile "record 1, document 1: its 1 element need more than the group's 3 words" $((G + 3)) 1 1 1
	hostile "record 1, document 1: its 2 elements need more than the group's 7 words" $((G + 7)) 2 24 1 2 0 0 0
	hostile "record 1, document 1: parts 4: this program knows 1 (side), 2 (ref), 8 (weights), .* and 32 (teacher)" \
		$((G + 3)) 1 4 1
	hostile "record 1, document 2: side 3 is neither 1 (chosen) nor 2 (rejected)" $((G + 10)) 2 1 1 7 8 2 1 3 7 8
	hostile "record 1, document 1: is an answer, and has nothing to predict" $((G + 9)) 1 1 1 7 2 1 2 7 8
	hostile "record 1, document 2: is an answer, and has nothing to predict" \
		$((G + 10)) 2 1 1 7 8 2 1 2 7 $((G + 8))
	hostile "record 1: has 2 chosen, 0 rejected and 0 other documents" $((G + 10)) 2 1 1 7 8 2 1 1 7 8
	hostile "record 1: has 1 chosen, 0 rejected and 1 other documents" $((G + 9)) 2 1 1 7 8 2 0 7 8
	hostile "record 1: has 1 chosen, 1 rejected and 1 other documents" $((G + 13)) 2 1 1 7 8 2 1 2 7 8 1 0 7
	hostile "record 1, document 1: its ref is not finite" $((G + 7)) 2 3 1 0 $((0x7ff00000)) 7 8
	hostile "record 1, document 1, element 1: its old log-probability is not finite" $((G + 6)) 2 16 1 2 $one $inf
	hostile "record 1, document 1, element 1: its weight is not finite" $((G + 6)) 2 8 1 2 $nan $nan
	hostile "record 1, document 2, element 2: its weight is not finite" $((G + 11)) 1 0 5 3 8 1 2 3 $one $one $inf
	[ "$(mt-store stat "$RUN" --json | value step)" = 0 ]
	words "$T/good" $((G + 6)) 2 8 1 2 $nan $one # nothing predicts the first
	mt-feed --check --shuffle 1 "$T/good"
	# shellcheck disable=SC2086
	mt-step "$RUN" $STEP --steps 1 <"$T/good" | grep -q '"tokens": 1,'
}

@test "mt-feed keeps groups whole when it copies, shuffles, mixes and repeats" {
	random_groups "$T/a" 1 1000 pairs
	random_groups "$T/b" 2 1000 pairs
	mt-feed "$T/a" | cmp - "$T/a"
	mt-feed - <"$T/a" | cmp - "$T/a"
	mt-feed --epochs 2 --shuffle 7 "$T/a" "$T/b" >"$T/shuffled"
	mt-feed --shuffle 7 "$T/a:2" "$T/b" >"$T/mixed"
	PYTHONPATH=$GOLDEN python3 - "$T" <<-'END2'
		import sys
		from records import read_records
		def keys(name):
		    return [repr([(x, getattr(x, "__dict__", 0)) for x in r] if r and isinstance(r[0], list) else
		        (r, getattr(r, "__dict__", 0))) for r in read_records(sys.argv[1] + "/" + name)]
		a, b = keys("a"), keys("b")
		assert keys("shuffled") != 2 * (a + b) and sorted(keys("shuffled")) == sorted(2 * (a + b))
		assert sorted(keys("mixed")) == sorted(2 * a + b)
	END2
	# tokens up to 1000, a vocabulary of 127
	fails_with 65 mt-feed --check --shuffle 1 --config "$CASE/model/config.json" "$T/a"
	grep -q "outside the vocabulary of 127" "$T/fails.err"
	words "$T/one" $(((1 << 31) + 3)) 1 0 65
	fails_with 65 sh -c 'mt-feed --decode <"$0"' "$T/one"
	grep -q "record 1: is a group, not plain text" "$T/fails.err"
}

@test "mt-score: a line for each document of a group, whatever its weight; mt-sample takes no group" {
	PYTHONPATH=$GOLDEN python3 - "$T" <<-'END2'
		import random, sys
		from records import Group, Weighted, write_records
		draw = random.Random(1)
		documents = [[draw.randrange(90) for _ in range(n)] for n in (5, 9, 3, 7, 40, 20)]
		a, b, c, d, e, f = (Weighted(x, [draw.random() for _ in x]) for x in documents)
		write_records(sys.argv[1] + "/plain", documents)
		write_records(sys.argv[1] + "/groups", [Group([a, documents[1]]), c,
		    Group([d, documents[3]]), e, Group([e, f]), f])
	END2
	make_run "$CASE/model" --dtype fp32
	spawn stream mt-stream "$RUN" --threads 1
	mt-score "$RUN" --seq 32 --pack none --micro 1 <"$T/plain" >"$T/p"
	mt-score "$RUN" --seq 32 --pack none --micro 1 <"$T/groups" >"$T/g"
	python3 - "$T/p" "$T/g" <<-'END2'
		import json, sys
		p, g = ([json.loads(l) for l in open(f)] for f in sys.argv[1:])
		assert [(l["record"], l.get("doc")) for l in g] == [(1, 1), (1, 2), (2, None), (3, 1), (3, 2), (4, None),
		    (5, None), (6, None)], g
		assert g[6]["logp"] is None and g[6]["targets"] == 0, g
		for a, b in zip((p[i] for i in (0, 1, 2, 3, 3, 4, 5)), g[:6] + g[7:]):
		    assert a["targets"] == b["targets"] and abs(a["logp"] - b["logp"]) <= 1e-5 * abs(a["logp"]), (a, b)
	END2
	exits 65 mt-sample "$RUN" --max-tokens 2 <"$T/groups" >"$T/out" 2>"$T/err"
	grep -q "record 1: is a group; a prompt is a plain record" "$T/err"
}

@test "mt-tokens --decode writes the text of each document of a group" {
	local G=$((1 << 31))
	words "$T/r" 2 72 105 $((G + 11)) 2 8 $((G + 97)) 98 0 0 3 0 99 100 101 1 102
	mt-tokens --bytes --decode "$T/r" >"$T/out"
	printf 'Hi\nab\ncde\nf\n' | cmp - "$T/out"
	for bad in "$((G + 1)) 1" "$((G + 3)) 1 1 65" "$((G + 3)) 2 8 65" "$((G + 2)) 0 0"; do
		words "$T/bad" $bad
		fails_with 65 mt-tokens --bytes --decode "$T/bad"
		grep -q "record 1, document 1: is not valid in its group" "$T/fails.err"
	done
}
