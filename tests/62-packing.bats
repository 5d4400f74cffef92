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
	make_run "$CASE/model" --dtype fp32
	start_stages
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
	make_run "$CASE/model" --dtype fp32
	start_stages
	records 0 1 2 >"$T/all"
	measure "$T/all" 1 docs >"$T/docs"
	measure "$T/all" 2 concat >"$T/concat"
	python3 - "$T/docs" "$T/concat" <<-'EOF2'
		import json, sys
		docs, concat = (json.loads(open(f).readline()) for f in sys.argv[1:])
		assert concat["tokens"] == 31 and abs(concat["loss"] - docs["loss"]) > 1e-3, (docs, concat)
	EOF2
}
