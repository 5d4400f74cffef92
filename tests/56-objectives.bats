# Losses of documents: clipped policy gradients and preferences.
load helpers
load lib/golden

@test "invalid options of losses exit 64, and so do those of another loss" {
	refused() { # WORDS OPTIONS...
		fails_with 64 mt-step r --check --steps 1 --batch 1 --seq 8 --lr 1 "${@:2}"
		grep -qF -- "$1" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
		fails_with 64 mt-step --count --batch 1 --seq 8 "${@:2}"
	}
	refused "--loss: 'ipo' is not nll, pg, dpo, simpo, orpo, kto or kd" --loss ipo
	refused "--loss: '' is not" --loss ''
	refused "--beta goes with --loss dpo, simpo, orpo or kto" --beta 0.1
	refused "--beta goes with" --loss pg --beta 0.1
	refused "--gamma goes with --loss simpo" --loss dpo --gamma 1
	refused "--clip-low goes with --loss pg" --loss dpo --clip-low 0.1
	refused "--clip-high goes with --loss pg" --clip-high 0.1
	for x in 0 -1; do refused "--beta: above 0" --loss dpo --beta $x; done
	for x in nan inf x; do refused "--beta" --loss simpo --beta $x; done
	refused "--gamma: 0 or more" --loss simpo --gamma -0.1
	for x in -0.1 1.1; do refused "--clip-low: 0 to 1" --loss pg --clip-low $x; done
	refused "--clip-high: 0 or more" --loss pg --clip-high -1
	refused "--desirable goes with --loss kto" --loss dpo --desirable 1
	refused "--undesirable: 0 or more" --loss kto --undesirable -1
	refused "--hard goes with --loss kd" --hard 0.1
	refused "--temperature: above 0" --loss kd --temperature 0
	refused "--rest: 0 to 1" --loss kd --rest 1.1
	refused "--temperature: the mass of all other tokens is known at 1 alone" --loss kd --temperature 2
	for loss in pg dpo simpo orpo kto kd; do refused "--pack concat cuts the input" --loss $loss --pack concat; done
	for how in "" "nll" "pg" "pg --clip-low 0 --clip-high 5" "dpo --beta 1" "simpo --beta 10 --gamma 0" orpo \
		"kto --beta 0.2 --desirable 0 --undesirable 1.5" kd "kd --temperature 2 --rest 0 --hard 0.5"; do
		mt-step r --check --steps 1 --batch 1 --seq 8 --lr 1 ${how:+--loss $how}
	done
	for loss in "dpo --beta 0" "dpo --clip-low 0.1" "ipo"; do
		fails_with 64 mt-run --model "$GOLDEN/llama3/model" --data "$GOLDEN/llama3/data.bin" --out "$T/out" --steps 1 \
			--batch 1 --seq 8 --lr 1 --loss $loss
	done
	[ ! -e "$T/out" ]
}

# bats test_tags=slow
@test "records of another kind than the loss needs are one line that says what makes them, and 65" {
	local G=$((1 << 31)) ref="3 0 $((0xc0000000))"
	words "$T/plain" 3 1 2 3
	words "$T/pair" $((G + 10)) 2 1 2 7 8 2 1 1 7 9
	words "$T/ref" $((G + 14)) 2 3 1 0 $((0xc0000000)) 7 8 2 3 2 0 $((0xc0000000)) 7 9
	words "$T/weighted" $((G + 12)) 2 9 1 7 8 0 0 2 1 2 7 9
	words "$T/advantage" $((G + 6)) 2 8 7 8 0 0
	words "$T/old" $((G + 6)) 2 16 7 8 0 0
	words "$T/rollout" $((G + 8)) 2 24 7 8 0 0 0 0
	refused() { # FILE LOSS WORDS
		cat "$T/$1" >"$T/in"
		fails_with 65 sh -c 'mt-step --count --batch 1 --seq 8 --loss "$1" <"$0"' "$T/in" "$2"
		grep -qF -- "stdin: record 1$3" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
		fails_with 65 mt-feed --check --loss "$2" "$T/in"
		grep -qF -- "$T/in: record 1$3" "$T/fails.err"
	}
	for loss in dpo simpo orpo; do
		for file in plain advantage rollout; do
			refused $file $loss ": is no pair, which --loss $loss needs: mt-tokens makes pairs of chosen and rejected"
		done
		[ $loss = dpo ] || refused weighted $loss ", document 1: has weights, which --loss $loss does not use"
		[ $loss = dpo ] || mt-step --count --batch 1 --seq 8 --loss $loss <"$T/pair" | grep -q '"targets": 2,'
		mt-step --count --batch 1 --seq 8 --loss $loss <"$T/ref" | grep -q '"targets": 2,'
	done
	refused pair dpo ", document 1: has no ref, which --loss dpo needs: mt-score --join ref writes it"
	for loss in nll pg; do
		refused pair $loss ": is a pair, which is for --loss dpo, simpo or orpo, not $loss"
	done
	refused plain pg ", document 1: has no weights, which are its advantages in --loss pg"
	refused old pg ", document 1: has no weights"
	refused advantage pg ", document 1: has no old log-probabilities, which --loss pg needs: mt-tokens writes those of"
	for loss in nll pg; do
		mt-step --count --batch 1 --seq 8 --loss $loss <"$T/rollout" | grep -q '"targets": 1,'
	done
	words "$T/good" $((G + 5)) 2 1 1 7 8
	words "$T/bad" $((G + 5)) 2 1 2 7 8
	words "$T/judged" $((G + 7)) 2 3 2 0 $((0xc0000000)) 7 8
	for file in plain rollout; do
		refused $file kto ": has no side, which --loss kto needs: mt-tokens writes it of label, or of chosen"
	done
	for file in good pair; do refused $file kto ", document 1: has no ref, which --loss kto needs"; done
	refused good dpo ": is no pair, which --loss dpo needs"
	for loss in nll pg; do refused bad $loss ": is an answer with a side, which is for --loss kto, not $loss"; done
	refused good pg ": is an answer with a side"
	mt-step --count --batch 1 --seq 8 <"$T/good" | grep -q '"targets": 1,'     # is trained on as any other
	for file in judged ref; do mt-step --count --batch 1 --seq 8 --loss kto <"$T/$file" | grep '"targets": [12]'; done
	mt-feed --check --loss dpo --shuffle 1 "$T/ref"
	mt-feed --check --loss kto --shuffle 1 "$T/ref" "$T/judged"
	fails_with 64 mt-feed --check --loss ipo "$T/ref"
	fails_with 64 mt-feed --loss dpo "$T/ref"
	# mt-run says so before it makes a run
	fails_with 65 mt-run --model "$GOLDEN/llama3/model" --data "$T/plain" --out "$T/out" --steps 1 --batch 1 --seq 8 \
		--lr 1 --loss dpo
	grep -q "record 1: is no pair, which --loss dpo needs" "$T/fails.err"
	[ ! -e "$T/out" ]
	# a pair that is longer than a row is dropped
	cat "$T/ref" "$T/ref" >"$T/in"
	fails_with 65 sh -c 'mt-step --count --batch 1 --seq 3 --loss dpo <"$0"' "$T/in"
	grep -q "every record is a group longer than --seq 3, which is dropped" "$T/fails.err"
	# so is an answer, which is not split
	words "$T/in" $((G + 10)) 5 3 1 0 $((0xc0000000)) 7 8 9 7 8
	for how in split truncate; do
		fails_with 65 sh -c 'mt-step --count --batch 1 --seq 3 --loss kto --long "$1" <"$0"' "$T/in" $how
	done
}

# ---- objective.c ----

@test "losses, rewards and derivatives of extreme log-probabilities, too, are autograd's in fp64 to 1e-12" {
	stream-objective "$GOLDEN/objectives.txt" >"$T/out" || { cat "$T/out"; return 1; }
	[ "$(tail -n 1 "$T/out")" = "$(grep -c . "$GOLDEN/objectives.txt") lines" ]
	[ "$(cut -d ' ' -f 1 "$GOLDEN/objectives.txt" | sort -u | tr '\n' ' ')" = "dpo kto orpo pg simpo " ]
}

@test "objectives by rows: swapped sides negate margins, the policy as its reference gives ln 2, NaN stays visible" {
	stream-objective
}

# ---- trainings ----

@test "8 steps of dpo on references of another model match PyTorch's" { golden llama-dpo; }
@test "8 steps of simpo match PyTorch's" { golden llama-simpo; }
@test "8 steps of orpo match PyTorch's, with tied embeddings" { golden llama-orpo; }
@test "8 steps of pg, of which a quarter of the targets is clipped, match PyTorch's" { golden llama-pg; }
@test "8 steps of kto, answers of two weights alone and in pairs, match PyTorch's" { golden llama-kto; }
@test "8 steps of kd on a teacher's 8 tokens and the others' mass, a quarter of hard targets, match PyTorch's" {
	TEACHER=8 golden llama-kd
}
@test "4 steps of kd at temperature 2 on 8 tokens alone match PyTorch's" { TEACHER=8 golden llama-kd-hot; }
@test "4 steps of kd on all tokens of the vocabulary match PyTorch's KL divergence" { TEACHER=79 golden llama-kd-all; }
# bats test_tags=slow
@test "8 steps of each objective differ from PyTorch's only by rounding, in bf16" {
	for loss in dpo simpo orpo pg kto kd; do
		RUN=$(mt_run_name $loss)
		TEACHER=8 golden llama-$loss --bf16
		mt-store rm "$RUN" --force
		rm -r "$T/final"
	done
}

# Pairs in $T/pairs, rollouts in $T/rollouts, answers alone and in pairs in $T/answers, and documents with 5 tokens of a
# teacher in $T/taught, each of 64 tokens in all, so that rows of 64, 128 and 256 tokens are full
full_records() {
	TEACHER=5
	PYTHONPATH=$GOLDEN python3 - "$T" 127 <<-'END2'
		import random, sys
		from records import CONTEXT_ONLY, Group, Weighted, write_records
		draw = random.Random(5)
		def tokens(n):
		    return [draw.randrange(90) | (CONTEXT_ONLY if i < n // 3 else 0) for i in range(n)]
		def pair():
		    n = draw.randrange(10, 54)
		    sides = zip((n, 64 - n), draw.sample((1, 2), 2))
		    return Group(Weighted(tokens(k), None, side, -3.0 * k) for k, side in sides)
		write_records(sys.argv[1] + "/pairs", [pair() for _ in range(12)])
		def answer():
		    return Weighted(tokens(64), None, draw.choice((1, 2)), draw.uniform(-250, -150))
		write_records(sys.argv[1] + "/answers", [answer() if i % 3 else pair() for i in range(12)])
		write_records(sys.argv[1] + "/rollouts", [Weighted(tokens(64), [draw.choice((-1, 0.5, 1))] * 64, None, None,
		    [draw.uniform(-6, -4) for _ in range(64)]) for _ in range(12)])
		def taught():
		    ids = tokens(64)
		    each = lambda: (sorted(draw.sample(range(90), 5)), [draw.uniform(-6, -1) for _ in range(6)])
		    return Weighted(ids, taught=(5, int(sys.argv[2])), teacher=[
		        each() if i and not t & CONTEXT_ONLY else None for i, t in enumerate(ids)])
		write_records(sys.argv[1] + "/taught", [taught() for _ in range(12)])
	END2
}

records_of() { # LOSS
	case $1 in pg) echo "$T/rollouts" ;; kto) echo "$T/answers" ;; kd) echo "$T/taught" ;; *) echo "$T/pairs" ;; esac
}

# bats test_tags=slow
@test "losses of documents depend on rows and micro-batches up to rounding, and two mt-streams give the bits of one" {
	full_records
	for loss in dpo simpo orpo pg kto kd; do
		file=$(records_of $loss)
		for how in "64 4 2" "64 4 1" "128 2 1" "256 1 1"; do
			set -- $how
			trained "s$1-$3" "$file" --seq $1 --batch $2 --micro $3 --loss $loss --eval "$file" --eval-every 3
		done
		python3 - $loss "$T"/s{64-2,64-1,128-1,256-1}.m <<-'END2'
			import json, sys
			runs = [[json.loads(l) for l in open(f)] for f in sys.argv[2:]]
			keys = {"pg": ("clip_fraction", "kl"), "kd": ()}.get(sys.argv[1], ("reward_chosen", "reward_rejected",
			    "margin", "accuracy", "eval_margin", "eval_accuracy"))
			for other in runs[1:]:
			    for a, b in zip(runs[0], other, strict=True):
			        assert a.keys() == b.keys() and (a["step"] == 0 or {*keys[:2], "loss"} <= a.keys()), (a, b)
			        for key in a:
			            assert abs(a[key] - b[key]) <= 1e-6 * (1 + abs(a[key])), (key, a, b)
			assert "eval_loss" in runs[0][-1] and {*keys} <= runs[0][-1].keys(), runs[0][-1]
		END2
		STREAMS=2 trained two "$file" --seq 64 --batch 4 --micro 1 --loss $loss --eval "$file" --eval-every 3
		cmp "$T/two.m" "$T/s64-1.m"
		cmp "$T/two.state" "$T/s64-1.state"
	done
}

# $T/ref: the pairs of $T/pairs with the log-probabilities in $T/lines, which mt-score wrote of them
references() {
	PYTHONPATH=$GOLDEN python3 - "$T" <<-'END2'
		import json, sys
		from records import read_records, write_records
		pairs = read_records(sys.argv[1] + "/pairs")
		lines = [json.loads(line) for line in open(sys.argv[1] + "/lines")]
		for d, line in zip((d for pair in pairs for d in pair), lines, strict=True):
		    d.ref = line["logp"]
		write_records(sys.argv[1] + "/ref", pairs)
	END2
}

@test "dpo with the start as its reference: the first step's loss is ln 2 to the last digit, its rewards are 0" {
	full_records
	for dtype in fp32 bf16; do
		make_run "$GOLDEN/qwen3/model" --dtype $dtype
		spawn stream mt-stream "$RUN" --threads 1
		mt-score "$RUN" --seq 64 --micro 4 <"$T/pairs" >"$T/lines"
		references
		spawn optim mt-optim "$RUN" --threads 1
		mt-step "$RUN" --steps 2 --seq 64 --batch 4 --micro 4 --lr 1e-3 --loss dpo --wait 5 <"$T/ref" >"$T/m"
		head -n 1 "$T/m" >"$T/first"
		grep -q '"loss": 0.6931471805599453, ' "$T/first" || { cat "$T/first"; return 1; }
		grep -q '"reward_chosen": 0, "reward_rejected": 0, "margin": 0, "accuracy": 0.5}' "$T/first"
		no grep -q '"step": 2, "loss": 0.69314718' "$T/m"
		mt-store rm "$RUN" --force
		: >"$T/pids"
	done
}

@test "pg with the policy's own log-probabilities as old is nll with advantages as weights, up to rounding" {
	full_records
	make_run "$GOLDEN/qwen3/model" --dtype fp32
	spawn stream mt-stream "$RUN" --threads 1
	mt-score "$RUN" --seq 64 --micro 4 --tokens <"$T/rollouts" >"$T/lines"
	mt-store rm "$RUN" --force
	PYTHONPATH=$GOLDEN python3 - "$T" <<-'END2'
		import json, sys
		from records import read_records, write_records
		rollouts = read_records(sys.argv[1] + "/rollouts")
		for d, line in zip(rollouts, open(sys.argv[1] + "/lines"), strict=True):
		    d.old = [logp or 0.0 for logp in json.loads(line)["tokens"]]
		write_records(sys.argv[1] + "/own", rollouts)
	END2
	for loss in pg nll; do trained $loss "$T/own" --seq 64 --batch 4 --micro 2 --loss $loss --until 1 --clip 0; done
	python3 - "$T/pg.m" "$T/nll.m" <<-'END2'
		import json, sys
		pg, nll = (json.loads(open(f).readline()) for f in sys.argv[1:])
		assert abs(pg["grad_norm"] - nll["grad_norm"]) < 1e-6 * nll["grad_norm"], (pg, nll)
		assert pg["clip_fraction"] == 0 and abs(pg["kl"]) < 1e-6 and pg["tokens"] == nll["tokens"], (pg, nll)
	END2
}

# bats test_tags=slow
@test "an evaluation in several parts is a mean over the pairs of all" {
	PYTHONPATH=$GOLDEN python3 - "$T" <<-'END2'
		import random, sys
		from records import Group, Weighted, write_records
		draw = random.Random(6)
		def answer(side):
		    return Weighted([draw.randrange(90) for _ in range(draw.choice((2, 4)))], None, side, draw.uniform(-20, 0))
		write_records(sys.argv[1] + "/pairs", [Group([answer(1), answer(2)]) for _ in range(4300)])
	END2
	for micro in 1 3; do # 4096 micro-batches are a part
		trained $micro "$T/pairs" --seq 8 --batch 4 --micro $micro --pack none --loss orpo --until 1 --eval "$T/pairs" \
			--eval-every 1
	done
	python3 - "$T/1.m" "$T/3.m" <<-'END2'
		import json, sys
		a, b = ([json.loads(l) for l in open(f) if "eval_loss" in l] for f in sys.argv[1:])
		for a, b in zip(a, b, strict=True):
		    for key in "eval_loss", "eval_margin", "eval_accuracy":
		        assert abs(a[key] - b[key]) <= 1e-6 * abs(a[key]), (key, a, b)
	END2
}

# bats test_tags=slow
@test "kill -9 of each stage, and resume, change no bit of a training with an objective" {
	full_records
	for loss in dpo pg kto kd; do
		file=$(records_of $loss)
		set -- --seq 64 --batch 2 --micro 1 --loss $loss --eval "$file" --eval-every 2
		trained whole "$file" --steps 6 "$@"
		make_run "$GOLDEN/qwen3/model" --dtype fp32 --top $TEACHER
		start_stages
		for dies in stream optim step none; do
			spawn step sh -c 'f=$1; shift; exec mt-step "$@" --steps 6 --lr 1e-3 --wait 20 <"$f"' - "$file" "$RUN" "$@"
			step=$PID
			case $dies in
			stream) kill -9 "$STREAM"; spawn stream mt-stream "$RUN" --threads 1; STREAM=$PID ;;
			optim) kill -9 "$OPTIM"; spawn optim mt-optim "$RUN" --threads 1; OPTIM=$PID ;;
			esac
			[ $dies = none ] || sleep 0.0$((RANDOM % 10))
			[ $dies = none ] || kill -9 "$step" 2>/dev/null || true
			wait "$step" 2>/dev/null || true
			cat "$T/step.out" >>"$T/lines.$loss"
		done
		arrays "$RUN" >"$T/killed.state"
		cmp "$T/killed.state" "$T/whole.state"
		mt-store rm "$RUN" --force
	done
}

@test "--grad none: steps with an objective give the bits of a run with gradients in the store" {
	full_records
	for loss in dpo pg kto kd; do
		file=$(records_of $loss)
		set -- --seq 64 --batch 4 --micro 4 --loss $loss --clip 0
		MODEL=llama3 trained store "$file" "$@"
		MODEL=llama3 GRAD=none trained none "$file" "$@"
		cmp "$T/store.state" "$T/none.state"
		for run in store none; do sed 's/"grad_norm": [^,]*, //' "$T/$run.m" >"$T/$run"; done
		cmp "$T/store" "$T/none"
	done
}

@test "an optimizer that drops figures trains with an objective: the metrics have the loss, and null for the rest" {
	need_atomic
	full_records
	make_run "$GOLDEN/llama3/model" --dtype fp32
	spawn stream mt-stream "$RUN" --threads 1
	spawn sgd "$TOP/tests/examples/sgd.py" "$RUN"
	mt-step "$RUN" --steps 3 --lr 0.5 --seq 64 --batch 4 --loss dpo --wait 5 <"$T/pairs" >"$T/m"
	grep -q '"step": 3, "loss": [0-9.]*, .*"reward_chosen": null, .*"accuracy": null}' "$T/m"
}

# ---- a teacher ----

# bats test_tags=slow
@test "a teacher's part that is not valid, of another vocabulary or number of tokens, is one line, and 65" {
	local G=$((1 << 31)) half=$(((0xc000 << 16) | 0xb800)) # -0.5 and -2 in fp16
	# two tokens with loss; of a vocabulary of 100, the teacher's ids 4 and 9, and all others
	taught() { # ID ID LOGS LOG VOCABULARY TOP
		words "$T/in" $((G + 15)) 3 32 "$6" "$5" 7 8 9 "$1" "$2" "$3" "$4" 4 9 $half $((0xc000))
	}
	refused() { # WORDS
		fails_with 65 sh -c 'mt-step --count --batch 1 --seq 8 --loss kd --config "$1" <"$0"' "$T/in" \
			"$GOLDEN/llama3/model"
		grep -qF -- "$1" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
		fails_with 65 mt-feed --check --loss kd --config "$GOLDEN/llama3/model/config.json" "$T/in"
		grep -qF -- "$1" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
	}
	taught 4 9 $half $((0xc000)) 100 2
	mt-step --count --batch 1 --seq 8 --loss kd --config "$GOLDEN/llama3/model" <"$T/in" | grep -q '"targets": 2,'
	[ "$(mt-feed --check --teacher "$T/in")" = 2 ]
	taught 4 9 $half $((0xfc00)) 100 2 # no mass for all others
	mt-feed --check --loss kd "$T/in"
	taught 9 4 $half $((0xc000)) 100 2
	refused "document 1, element 1: its teacher's 2 tokens do not ascend below 100, or a log-probability is not one"
	taught 4 4 $half $((0xc000)) 100 2 && refused "do not ascend"
	taught 4 100 $half $((0xc000)) 100 2 && refused "do not ascend"
	for bad in 0xb8003c00 0xfc00c000 0xfe00c000 0xc000fc00; do # above 1, of 0 twice, NaN
		taught 4 9 $((bad)) $((0xc000)) 100 2 && refused "do not ascend"
	done
	for bad in 0 3 $((G)) $((0xffffffff)); do
		taught 4 9 $half $((0xc000)) 100 $bad && refused "tokens of its teacher do not fit its group"
	done
	taught 4 9 $half $((0xc000)) 50000 2
	refused "its teacher has a vocabulary of 50000 tokens, the model one of 101: they must be the same"
	taught 4 101 $half $((0xc000)) 103 2
	refused "element 1: its teacher's token 101 is outside the vocabulary of 101"
	taught 4 9 $half $((0xc000)) 100 2 && cp "$T/in" "$T/first"
	words "$T/second" $((G + 8)) 2 32 1 100 7 8 4 $half && cat "$T/first" "$T/second" >"$T/in"
	fails_with 65 sh -c 'mt-step --count --batch 1 --seq 8 --loss kd <"$0"' "$T/in"
	grep -q "stdin: record 2: has 1 tokens of its teacher in place of 2" "$T/fails.err"
	words "$T/in" 3 7 8 9 && refused "has no teacher, which --loss kd needs: mt-score --top K writes it"
	make_run "$GOLDEN/llama3/model"
	fails_with 78 sh -c 'mt-step "$1" --steps 1 --batch 1 --seq 8 --lr 1 --loss kd <"$0"' "$T/first" "$RUN"
	grep -q "the run's rings have no room for a teacher's tokens: mt-store create --top K" "$T/fails.err"
}

# mt-score --top K of $T/records by mt-stream's OPTIONS, into $T/NAME: top NAME K [OPTIONS...]
top() {
	make_run "$GOLDEN/qwen3/model" --dtype fp32 --state none
	spawn stream mt-stream "$RUN" --threads 1 "${@:3}"
	mt-score "$RUN" --seq 32 --micro 3 --top "$2" <"$T/records" >"$T/$1" 2>"$T/err" ||
		{ cat "$T/err" "$T/stream.err"; return 1; }
	mt-store rm "$RUN" --force
	wait "$PID" || true
	: >"$T/pids"
}

@test "mt-score --top: the likeliest tokens and their log-probabilities, as --tokens has them; else the same" {
	mixed_records
	for k in 1 3 127; do top top$k $k; done
	mt-feed "$T/top3" | cmp - "$T/top3"
	mt-feed --check --shuffle 1 "$T/top3"
	mv "$T/top3" "$T/records"
	top again 3
	cmp "$T/records" "$T/again"
	make_run "$GOLDEN/qwen3/model" --dtype fp32
	spawn stream mt-stream "$RUN" --threads 1
	mt-score "$RUN" --seq 32 --micro 3 --tokens <"$T/records" >"$T/lines"
	mixed_records
	PYTHONPATH=$GOLDEN python3 - "$T" <<-'END2'
		import json, math, sys
		from records import CONTEXT_ONLY, Group, read_records
		where = sys.argv[1]
		flat = lambda rs: [d for r in rs for d in (r if isinstance(r, Group) else [r])]
		lines = [json.loads(l) for l in open(where + "/lines")]
		plain = flat(r for r in read_records(where + "/records") if not isinstance(r, Group) or sum(map(len, r)) <= 32)
		one, all_of, some = (flat(read_records(f"{where}/{name}")) for name in ("top1", "top127", "again"))
		assert len(one) == len(some) == len(plain) == len(lines), (len(one), len(plain), len(lines))
		count = 0
		for d, a, b, c, line in zip(plain, one, some, all_of, lines):
		    for x in a, b, c:
		        assert list(x) == list(d)
		        assert all(getattr(x, k) == getattr(d, k, None) for k in ("weights", "side", "ref", "old"))
		    for i, logp in enumerate(line["tokens"]):
		        assert (logp is None) == (b.teacher[i] is None)
		        if logp is None:
		            continue
		        count += 1
		        every = dict(zip(*c.teacher[i]))
		        assert list(every) == list(range(127)) and c.teacher[i][1][-1] == -math.inf
		        best = sorted(every, key=lambda t: -every[t])
		        assert abs(every[d[i]] - logp) <= 2**-11 * abs(logp)
		        for x, k in (a, 1), (b, 3):
		            ids, logs = x.teacher[i]
		            assert min(every[t] for t in ids) >= every[best[k]] and len(ids) == k
		            assert all(every[t] == l for t, l in zip(ids, logs)) and list(ids) == sorted(ids)
		            assert abs(sum(map(math.exp, logs)) - 1) < 5e-3, logs
		    greedy = all(t is None or t[0][0] == token for t, token in zip(a.teacher, d))
		    assert greedy == line["greedy"]
		assert count > 400, count
	END2
	fails_with 64 mt-score "$RUN" --seq 32 --top 3 --join ref
	fails_with 64 mt-score "$RUN" --seq 32 --top 3 --sum
	fails_with 64 mt-score "$RUN" --seq 32 --top 128
}

@test "mt-score --top: the same bytes from two mt-streams and from any order of a device's queues" {
	mixed_records
	top one 7
	top chaos 7 --device chaos:3
	cmp "$T/one" "$T/chaos"
	make_run "$GOLDEN/qwen3/model" --dtype fp32 --state none
	spawn a mt-stream "$RUN" --threads 1
	spawn b mt-stream "$RUN" --threads 1
	mt-score "$RUN" --seq 32 --micro 3 --top 7 <"$T/records" >"$T/two" 2>"$T/err"
	cmp "$T/one" "$T/two"
}

# bats test_tags=slow
@test "the emulated GPU selects the tokens of mt-score --top as the cpu, and its 8 steps of kd match PyTorch's" {
	local emulator=$BUILD/emu/mt-stream case=$GOLDEN/llama-kd
	[ -x "$emulator" ] || skip "built without a C++ compiler, or with sanitizers"
	mixed_records
	top cpu 7
	mkdir "$T/bin"
	ln -s "$emulator" "$T/bin/mt-stream"
	for seed in 1 2; do
		export MT_EMU_SEED=$seed
		PATH=$T/bin:$PATH top gpu$seed 7 --device cuda
	done
	cmp "$T/gpu1" "$T/gpu2"
	PYTHONPATH=$GOLDEN python3 - "$T/cpu" "$T/gpu1" <<-'END2'
		import sys
		from records import Group, read_records
		a, b = ([t for r in read_records(f) for d in (r if isinstance(r, Group) else [r]) for t in d.teacher if t]
		        for f in sys.argv[1:])
		assert len(a) == len(b) > 400 and all(x[0] == y[0] for x, y in zip(a, b))
		assert all(abs(x - y) <= 2**-10 * abs(y) for (_, p), (_, q) in zip(a, b) for x, y in zip(p, q))
	END2
	make_run "$case/model" --dtype fp32 --top 8
	spawn stream "$emulator" "$RUN" --device cuda
	spawn optim mt-optim "$RUN" --threads 1
	mt-step "$RUN" $(cat "$case/args") <"$case/data.bin" >"$T/m" 2>"$T/step.err"
	python3 "$GOLDEN/compare.py" "$case" --metrics "$T/m"
}

# bats test_tags=slow
@test "kd with the model itself as its teacher: loss and gradient are those of fp16 log-probabilities" {
	full_records
	cp "$T/rollouts" "$T/records"
	run_of() { mt-run --quiet --model "$GOLDEN/qwen3/model" --dtype fp32 --threads 1 --seq 64 --micro 2 "$@"; }
	run_of --score --data "$T/rollouts" --top 20 >"$T/own"
	run_of --data "$T/own" --loss kd --no-shuffle --steps 2 --batch 4 --lr 1e-3 --out "$T/kd" >"$T/m"
	python3 - "$T/m" <<-'END2'
		import json, sys
		first, second = map(json.loads, open(sys.argv[1]))
		assert 0 < first["loss"] < 1e-6 and first["grad_norm"] < 1e-2 < second["grad_norm"], (first, second)
	END2
	fails_with 64 run_of --score --data "$T/rollouts" --top 20 --join ref
	fails_with 64 run_of --score --data "$T/rollouts" --top 20 --sum
	fails_with 65 run_of --data "$T/rollouts" --loss kd --steps 2 --batch 4 --lr 1e-3 --out "$T/no"
	grep -q "has no teacher" "$T/fails.err"
	fails_with 64 run_of --data "$T/own" --top 20 --steps 2 --batch 4 --lr 1e-3 --out "$T/no"
}

# ---- metrics ----

# bats test_tags=slow
@test "losses, rewards, margins, accuracies, clipped shares and kl are the formulas of mt-score's log-probabilities" {
	full_records
	for file in pairs rollouts answers; do
		make_run "$GOLDEN/qwen3/model" --dtype fp32
		spawn stream mt-stream "$RUN" --threads 1
		mt-score "$RUN" --seq 64 --micro 4 --tokens <"$T/$file" >"$T/$file.scores"
		mt-store rm "$RUN" --force
	done
	for loss in "dpo --beta 0.05" simpo "simpo --beta 1.5 --gamma 0.25" orpo "orpo --beta 0.5" pg \
		"pg --clip-low 0.1 --clip-high 0.6" kto "kto --beta 0.02 --desirable 1.5 --undesirable 0.5"; do
		file=$(records_of ${loss%% *})
		# shellcheck disable=SC2086
		trained m "$file" --seq 64 --batch 4 --micro 4 --until 1 --loss $loss --eval "$file" --eval-every 1
		PYTHONPATH=$GOLDEN python3 - "$file" "$T/m.m" $loss <<-'END2'
			import json, math, sys
			from records import CONTEXT_ONLY, Group, read_records
			file, metrics, loss, *options = sys.argv[1:]
			given = {options[i][2:]: float(options[i + 1]) for i in range(0, len(options), 2)}
			beta, gamma = given.get("beta", 2 if loss == "simpo" else 0.1), given.get("gamma", 1)
			low = given.get("clip-low", 0.2)
			high = given.get("clip-high", low)
			softplus = lambda x: max(x, 0) + math.log1p(math.exp(-abs(x)))
			logit = lambda m: m - math.log(-math.expm1(m))
			mean = lambda xs: sum(xs) / len(xs)
			scores = [json.loads(line)["tokens"] for line in open(file + ".scores")]
			def of_pair(pair):
			    (c, lc), (r, lr) = sorted(pair, key=lambda d: d[0].side)
			    sums = [math.fsum(x for x in l if x is not None) for l in (lc, lr)]
			    n = [sum(not t & CONTEXT_ONLY for t in d[1:]) for d in (c, r)]
			    means = [s / k for s, k in zip(sums, n)]
			    rewards = [beta * (s - d.ref) for s, d in zip(sums, (c, r))] if loss == "dpo" else \
			        [beta * m for m in means]
			    value = softplus(logit(means[1]) - logit(means[0])) if loss == "orpo" else \
			        softplus(rewards[1] - rewards[0] + (gamma if loss == "simpo" else 0))
			    return value, -sums[0], n[0], *rewards, rewards[0] - rewards[1], float(rewards[0] > rewards[1])
			def expected(records):
			    if loss == "kto":
			        of = {1: [], 2: []}
			        for d, logps in (answer for answers in records for answer in answers):
			            of[d.side].append(beta * (math.fsum(x for x in logps if x is not None) - d.ref))
			        sigmoid = lambda x: math.exp(-softplus(-x))
			        values = [given.get("desirable", 1) * sigmoid(-x) for x in of[1]] + \
			            [given.get("undesirable", 1) * sigmoid(x) for x in of[2]]
			        right = [float(x > 0) for x in of[1]] + [float(x < 0) for x in of[2]]
			        return {"loss": mean(values), "reward_chosen": mean(of[1]), "reward_rejected": mean(of[2]),
			            "margin": mean(of[1]) - mean(of[2]), "accuracy": mean(right)}
			    if loss == "pg":
			        targets = [(l, o, w) for d, logps in records for l, o, w, t in zip(logps, d.old, d.weights, d)
			                   if l is not None]
			        parts = []
			        for l, o, w in targets:
			            r = math.exp(l - o)
			            clipped = w > 0 and r > 1 + high or w < 0 and r < 1 - low
			            parts.append((-min(r * w, min(max(r, 1 - low), 1 + high) * w), float(clipped), o - l))
			        return dict(zip(("loss", "clip_fraction", "kl"), map(mean, zip(*parts))))
			    values, nll, n, *rest = zip(*map(of_pair, records))
			    value = sum(nll) / sum(n) + beta * mean(values) if loss == "orpo" else mean(values)
			    keys = "reward_chosen", "reward_rejected", "margin", "accuracy"
			    return {"loss": value, **dict(zip(keys, map(mean, rest)))}
			records, at = [], 0
			for r in read_records(file):
			    documents = r if isinstance(r, Group) else [r]
			    records.append(list(zip(documents, scores[at:at + len(documents)])))
			    at += len(documents)
			assert at == len(scores)
			records = [r[0] for r in records] if loss == "pg" else records
			lines = [json.loads(line) for line in open(metrics)]
			def same(got, want, prefix=""):
			    for key, value in want.items():
			        if prefix + key in got:
			            assert abs(got[prefix + key] - value) <= 2e-5 * max(abs(value), 0.1), (loss, key, got, want)
			same(lines[0], expected(records), "eval_")
			same(lines[1], expected(records[:4]))
			keys = [key for key in lines[1] if key in ("clip_fraction", "kl", "reward_chosen", "reward_rejected",
			    "margin", "accuracy", "eval_loss", "eval_accuracy", "eval_margin")]
			assert keys == (["clip_fraction", "kl", "eval_loss"] if loss == "pg" else ["reward_chosen",
			    "reward_rejected", "margin", "accuracy", "eval_loss", "eval_accuracy", "eval_margin"]), lines[1]
			assert list(lines[0]) == ["step", *(key for key in keys if key.startswith("eval_"))], lines[0]
		END2
	done
}

# ---- mt-score --join ----

# Records of all kinds in $T/records: plain ones, cut ones, pairs, groups; some have parts already, one is too long
mixed_records() {
	PYTHONPATH=$GOLDEN python3 - "$T/records" <<-'END2'
		import random, sys
		from records import CONTEXT_ONLY, Group, Weighted, write_records
		draw = random.Random(7)
		def tokens(n):
		    return [draw.randrange(90) | (CONTEXT_ONLY if draw.random() < 0.3 else 0) for i in range(n - 1)] + [5]
		def some(n, side=None):
		    return Weighted(tokens(n), [0.5] * n if draw.random() < 0.5 else None, side,
		        -7.0 if draw.random() < 0.5 else None, [-2.0] * n if draw.random() < 0.5 else None)
		records = [tokens(draw.choice((1, 2, 20, 31, 32, 33, 100))) for _ in range(20)]
		records += [some(draw.choice((1, 2, 20, 64))) for _ in range(10)]
		records += [Group(some(draw.randrange(2, 16), side) for side in draw.sample((1, 2), 2)) for _ in range(20)]
		records += [some(draw.choice((2, 20, 32)), draw.choice((1, 2))) for _ in range(10)]
		records += [Group([some(3), tokens(2), some(9)]), Group([some(20), some(20)]), tokens(7)]
		draw.shuffle(records)
		write_records(sys.argv[1], records)
	END2
}

@test "mt-score --join writes the records again, byte for byte but for ref or old, which are its scores" {
	mixed_records
	make_run "$GOLDEN/qwen3/model" --dtype fp32
	spawn stream mt-stream "$RUN" --threads 1
	mt-score "$RUN" --seq 32 --micro 3 --tokens <"$T/records" >"$T/lines"
	for part in ref old; do
		mt-score "$RUN" --seq 32 --micro 3 --join $part <"$T/records" >"$T/$part" 2>"$T/err"
		[ "$(cat "$T/err")" = "mt-score: 1 record is longer than --seq 32 and left out" ]
		mt-feed "$T/$part" | cmp - "$T/$part"
		mt-feed --check --shuffle 1 "$T/$part"
		mt-score "$RUN" --seq 32 --micro 3 --join $part <"$T/$part" | cmp - "$T/$part"
	done
	PYTHONPATH=$GOLDEN python3 - "$T" <<-'END2'
		import json, struct, sys
		from records import CONTEXT_ONLY, Group, Weighted, group_words, read_records
		where = sys.argv[1]
		lines = [json.loads(l) for l in open(where + "/lines")]
		dropped = [l["record"] for l in lines if l["logp"] is None]
		lines = [l for l in lines if l["logp"] is not None]
		records = [r for i, r in enumerate(read_records(where + "/records"), 1) if i not in dropped]
		assert len(dropped) == 1
		for part in "ref", "old":
		    at, want = 0, b""
		    for r in records:
		        made = Group()
		        for d in r if isinstance(r, Group) else [r]:
		            line, at = lines[at], at + 1
		            d = Weighted(d, *(getattr(d, x, None) for x in ("weights", "side", "ref", "old")))
		            scored = sum(t is not None for t in line["tokens"])
		            assert len(line["tokens"]) == len(d) and line["targets"] == scored, line
		            if part == "ref":
		                d.ref = line["logp"]
		            else:
		                d.old = [t or 0.0 for t in line["tokens"]]
		            made.append(d)
		        words = group_words(made)
		        want += struct.pack("<%dI" % len(words), *words)
		    assert open(f"{where}/{part}", "rb").read() == want, part
	END2
	fails_with 64 mt-score "$RUN" --seq 32 --join weights
	fails_with 64 mt-score "$RUN" --seq 32 --join ref --sum
	fails_with 64 mt-score "$RUN" --seq 32 --join ref --long truncate
}

@test "mt-run's closing line and mt-top have margin and accuracy of pairs, and of no other loss" {
	local loss how="--seq 64 --batch 4 --micro 2 --lr 1e-3"
	full_records
	for loss in simpo pg; do
		mt-run --model "$GOLDEN/qwen3/model" --dtype fp32 --threads 1 $how --steps 2 \
			--data "$(records_of $loss)" --loss $loss --out "$T/$loss" >"$T/$loss.m" 2>"$T/$loss.err" 3>&-
		make_run "$GOLDEN/qwen3/model" --dtype fp32
		start_stages
		mt-step "$RUN" --steps 9 --until 2 $how --loss $loss <"$(records_of $loss)" >"$T/$loss.step" 2>"$T/step.err"
		if command -v mt-top; then COLUMNS=80 LC_ALL=C mt-top "$RUN" --once >"$T/$loss.top"; fi
		mt-store rm "$RUN" --force
	done
	python3 - "$T" <<-'END2'
		import json, os, sys
		read = lambda name: open(sys.argv[1] + "/" + name).read()
		lines = lambda name: [json.loads(line) for line in read(name).splitlines()]
		first, last = lines("simpo.m")
		want = "; " + "; ".join("%s %s to %s" % (key, form % first[key], form % last[key])
		    for key, form in (("loss", "%.4f"), ("margin", "%.4f"), ("accuracy", "%.2f")))
		assert want + "\n" in read("simpo.err"), (want, read("simpo.err"))
		first, last = lines("pg.m")
		assert "; loss %.4f to %.4f\n" % (first["loss"], last["loss"]) in read("pg.err"), read("pg.err")
		if os.path.exists(sys.argv[1] + "/pg.top"):
		    want = "loss %(loss).4f  margin %(margin).4f  accuracy %(accuracy).2f  norm" % lines("simpo.step")[-1]
		    assert want in read("simpo.top"), read("simpo.top")
		    assert "loss %.4f  norm" % lines("pg.step")[-1]["loss"] in read("pg.top"), read("pg.top")
	END2
}

# bats test_tags=slow
@test "mt-run --score --join: dpo from its reference begins with ln 2 and rewards of 0, pg from its sampler unclipped" {
	full_records
	for dtype in fp32 bf16; do
		run_of() { mt-run --quiet --model "$GOLDEN/qwen3/model" --dtype $dtype --threads 1 --seq 64 --micro 2 "$@"; }
		run_of --score --data "$T/pairs" --join ref >"$T/ref"
		run_of --data "$T/ref" --loss dpo --no-shuffle --steps 1 --batch 4 --lr 1e-3 --out "$T/dpo.$dtype" >"$T/dpo"
		run_of --score --data "$T/rollouts" --join old >"$T/old"
		run_of --data "$T/old" --loss pg --no-shuffle --steps 1 --batch 4 --lr 1e-3 --out "$T/pg.$dtype" >"$T/pg"
		python3 - "$T/dpo" "$T/pg" <<-'END2'
			import json, math, sys
			dpo, pg = (json.loads(open(f).readline()) for f in sys.argv[1:])
			assert abs(dpo["loss"] - math.log(2)) < 1e-15, dpo
			assert dpo["reward_chosen"] == dpo["reward_rejected"] == dpo["margin"] == 0 and dpo["accuracy"] == 0.5, dpo
			assert pg["clip_fraction"] == 0 and abs(pg["kl"]) < 1e-7, pg
		END2
	done
	for bad in "--join weights" "--join ref --sum" "--join old --tokens"; do
		fails_with 64 run_of --score --data "$T/pairs" $bad
		grep -q -- "--join" "$T/fails.err"
	done
}
