# Documents packed into one row do not see each other, and masked tokens do not count in the loss.
load helpers

CASE=$GOLDEN/qwen3

# Three documents; loss is computed only on those whose numbers are given, the others are context: records NUMBER...
records() {
	python3 - "$@" <<-'EOF2'
		import random, struct, sys
		random.seed(7)
		for number, length in enumerate((11, 7, 14)):
		    ids = [random.randrange(90) for _ in range(length)]
		    if str(number) not in sys.argv[1:]:
		        ids = [i | 1 << 31 for i in ids]
		    sys.stdout.buffer.write(struct.pack(f"<{length + 1}I", length, *ids))
	EOF2
}

# Loss, norm and targets of each step, with learning rate 0 so that every step has the same weights
measure() { # RECORDS STEPS PACK
	mt-step "$RUN" --steps "$2" --batch 1 --seq 32 --lr 0 --clip 0 --pack "$3" --input new <"$1" 2>>"$T/step.err"
}

@test "each of three documents in a row gets the loss and the gradient that it has alone" {
	ready
	records 0 1 2 >"$T/all"
	measure "$T/all" 3 none >"$T/alone"
	measure "$T/all" 4 docs >"$T/packed"
	local step=4
	for i in 0 1 2; do
		records "$i" >"$T/one"
		step=$((step + 1))
		measure "$T/one" "$step" docs >>"$T/masked"
	done
	python3 - "$T/alone" "$T/packed" "$T/masked" <<-'EOF2'
		import json, sys
		alone, packed, masked = ([json.loads(l) for l in open(f)] for f in sys.argv[1:])
		near = lambda a, b: abs(a - b) <= 2e-6 * abs(b)
		assert [m["tokens"] for m in alone] == [10, 6, 13], alone
		assert len(packed) == 1 and packed[0]["tokens"] == 29, packed
		assert near(packed[0]["loss"], sum(m["loss"] * m["tokens"] for m in alone) / 29), (packed, alone)
		# with the other two masked, the row has the loss and the gradient of one document
		for a, m in zip(alone, masked, strict=True):
		    assert a["tokens"] == m["tokens"] and near(m["loss"], a["loss"]), (a, m)
		    assert abs(m["grad_norm"] - a["grad_norm"]) <= 1e-5 * a["grad_norm"], (a, m)
		losses = [m["loss"] for m in alone]
		assert max(losses) - min(losses) > 1e-3     # with equal documents the test would show nothing
	EOF2
}

@test "without isolation the losses differ: --pack concat sees across documents" {
	ready
	records 0 1 2 >"$T/all"
	measure "$T/all" 1 docs >"$T/docs"
	measure "$T/all" 2 concat >"$T/concat"
	python3 - "$T/docs" "$T/concat" <<-'EOF2'
		import json, sys
		docs, concat = (json.loads(open(f).readline()) for f in sys.argv[1:])
		assert concat["tokens"] == 31 and abs(concat["loss"] - docs["loss"]) > 1e-3, (docs, concat)
	EOF2
}

# Forty documents of 1 to 60 tokens; a third of the tokens is context only, one document is so as a whole
masked_records() {
	python3 - <<-'EOF2'
		import random, struct, sys
		random.seed(5)
		for number in range(40):
		    length = random.choice((1, 2, 5, 16, 31, 32, 33, 60))
		    ids = [random.randrange(90) | (number == 3 or random.random() < 1 / 3) << 31 for _ in range(length)]
		    sys.stdout.buffer.write(struct.pack(f"<{length + 1}I", length, *ids))
	EOF2
}

# bats test_tags=slow
@test "--count gives the steps and targets of the training on the same input, for every packing and batch" {
	ready
	masked_records >"$T/masked"
	for data in "$CASE/data.bin" "$T/masked"; do
		for pack in docs concat none 'docs --long drop' 'concat --long truncate'; do
			for batch in 1 4 7; do
				how="--seq 32 --batch $batch --pack $pack"
				mt-step --count $how <"$data" >"$T/count" 2>"$T/count.err"
				[ ! -s "$T/count.err" ]
				mt-step "$RUN" $how --steps 9999 --lr 0 --input new --max-skipped 0 <"$data" >"$T/m" 2>>"$T/step.err"
				python3 - "$T/count" "$T/m" "$how" <<-'EOF2'
					import json, sys
					(count,), lines = ([json.loads(l) for l in open(f)] for f in sys.argv[1:3])
					assert count["steps"] == len(lines) > 2, (sys.argv, count, len(lines))
					assert count["targets"] == sum(m["tokens"] for m in lines), (sys.argv, count)
				EOF2
			done
		done
	done
}

@test "--count needs no run and reports documents, tokens, rows and padding" {
	records 0 1 2 >"$T/all" # of 11, 7 and 14 tokens
	unset MT_RUN
	[ "$(mt-step --count --seq 16 --batch 2 --steps 7 --lr x 2>&1 <"$T/all")" = \
		"mt-step: --lr: 'x' is not a valid X" ]
	counts() { # OPTION...: the values; their names and order must be these
		mt-step --count "$@" <"$T/all" | python3 -c 'import json, sys
count = json.loads(sys.stdin.read())
assert " ".join(count) == "documents tokens targets longest longer rows padding steps", count
print(*count.values())'
	}
	[ "$(counts --seq 16 --batch 2 --steps 7)" = "3 32 29 14 0 3 16 2" ]
	[ "$(counts demo --seq 8 --batch 4)" = "3 32 29 14 2 5 6 2" ]
	[ "$(counts --seq 8 --batch 4 --long drop)" = "3 7 6 14 2 1 1 1" ]
	[ "$(counts --seq 8 --batch 4 --long truncate)" = "3 23 20 14 2 3 1 1" ]
	[ "$(counts --seq 16 --batch 2 --pack concat)" = "3 32 31 14 0 3 14 2" ]
}

@test "--count --config checks all tokens, and counts rows and steps without targets and answers without question" {
	python3 - "$T" <<-'EOF2'
		import struct, sys
		X = 1 << 31                     # context only
		def write(name, *documents):
		    with open(f"{sys.argv[1]}/{name}", "wb") as f:
		        for d in documents:
		            f.write(struct.pack(f"<{len(d) + 1}I", len(d), *d))
		chat = [5 | X] * 4 + [6] * 3 + [7 | X] * 2 + [8] * 6
		write("chats", chat, [1, 2, 3], [9 | X] * 5)
		write("bad", *[[1, 2, 3]] * 50, [4, 5 | X, 999])
	EOF2
	more() { # OPTION...: the values that --config adds
		mt-step --count --config "$CASE/model" "$@" <"$T/chats" | python3 -c 'import json, sys
count = json.loads(sys.stdin.read())
print(*(count[k] for k in "rows_without_targets steps_skipped steps_skipped_in_row answers answers_cut".split()))'
	}
	[ "$(more --seq 15 --batch 1 --pack none)" = "1 1 1 2 0" ]
	[ "$(more --seq 8 --batch 1 --pack none)" = "1 1 1 2 1" ] # the second one, whose question begins in the first row
	[ "$(more --seq 5 --batch 1 --pack none)" = "1 1 1 2 2" ]
	[ "$(more --seq 5 --batch 2 --pack none)" = "1 0 0 2 2" ]
	[ "$(more --seq 15 --batch 1 --pack none --steps 2)" = "1 0 0 2 0" ]
	[ "$(more --seq 8 --batch 1 --pack none --long drop)" = "1 1 1 0 0" ]
	[ "$(more --seq 8 --batch 1 --pack none --long truncate)" = "1 1 1 1 0" ]
	fails_with 65 sh -c "mt-step --count --seq 8 --batch 1 --config $CASE/model <$T/bad"
	grep -q "stdin: record 51, element 2: token 999 is outside the vocabulary of " "$T/fails.err"
	mt-step --count --seq 8 --batch 1 <"$T/bad"
	fails_with 64 mt-step demo --steps 1 --batch 1 --seq 8 --lr 1 --config "$CASE/model"
}

@test "--count exits 65 without a record, after an invalid one, and 74 if stdout is full; 64 without --seq or --batch" {
	records 0 1 2 >"$T/all"
	fails_with 65 mt-step --count --seq 16 --batch 2
	grep -q "no record at all" "$T/fails.err"
	printf '\011\0\0\0\001\0\0\0' >>"$T/all"
	fails_with 65 sh -c "mt-step --count --seq 16 --batch 2 <$T/all"
	grep -q "record 4: input ends after 1 of its 9 elements" "$T/fails.err"
	records 0 1 2 >"$T/all"
	fails_with 74 sh -c "mt-step --count --seq 16 --batch 2 <$T/all >/dev/full"
	fails_with 64 mt-step --count --seq 16
	fails_with 64 mt-step --count --batch 2
	fails_with 64 mt-step --count --batch 2 --seq 16 --pack all
}
