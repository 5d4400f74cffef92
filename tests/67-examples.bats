# tests/examples: each program and script there does what its first lines say. Arithmetic is repeated in plain Python,
# number by number.
load helpers

EXAMPLES=$TOP/tests/examples
CASE=$GOLDEN/llama3
STEP="--steps 4 --batch 4 --micro 2 --seq 32 --lr 1e-3 --warmup 1 --wd 0.1 --beta2 0.99 --clip 0 --wait 60"
export PATH="$BUILD/examples:$EXAMPLES:$PATH"

train() { # MORE OPTIONS...: on $RUN, with the stages that are there
	mt-step "$RUN" $(with "$STEP" "$@") <"$CASE/data.bin" >>"$T/metrics" 2>"$T/step.err"
}
# The state of a run without what a saver leaves behind
bits() { ckpt-dump "$1" | sed 's/ pin .*//'; }
committed() { mt-store ls "$RUN" --json | sed 's/.*"step":\([0-9]*\).*/\1/'; }
at_step() { [ "$(committed)" = "$1" ]; }
shows() { mt-store stat "$RUN" | grep -q "$1"; }           # a line of stat

# Train to the next step, keep its gradients as g$1 and its weights as w$1: a_step N OPTIONS...
a_step() {
	local n=$1
	shift
	train "$@" --until "$n"
	ckpt-dump "$RUN" grads "$T/g$n.safetensors"
	mt-ckpt export "$RUN" "$T/w$n" --dtype fp32 2>>"$T/export.err"
}

# RULE: Python that makes w1 and m1 of w, m, g, lr and decay. Compare every number of two steps, to the last bit.
same_as() { # RULE
	sed -n 's/.*"lr": \([^,]*\),.*/\1/p' "$T/metrics" >"$T/lr"
	PYTHONPATH=$GOLDEN python3 - "$CASE/model" "$T" "$1" <<-'PY'
		import struct, sys
		from records import read_safetensors
		model, dir, rule = sys.argv[1:]
		rule = compile(rule, "rule", "exec")
		rate = [float(line) for line in open(dir + "/lr")]
		rounded = lambda x: struct.unpack("<f", struct.pack("<f", x))[0]
		sign = lambda x: (x > 0) - (x < 0)
		before, moved, m = read_safetensors(model + "/model.safetensors"), 0, {}
		for step in (1, 2):
		    gradients = read_safetensors(f"{dir}/g{step}.safetensors")
		    after = read_safetensors(f"{dir}/w{step}/model.safetensors")
		    assert set(before) == set(gradients) == set(after) and len(after) > 15
		    for name, (_, shape, values) in after.items():
		        momentum = m.setdefault(name, [0.0] * len(values))
		        for i, (w, g, got) in enumerate(zip(before[name][2], gradients[name][2], values)):
		            names = {"w": w, "g": g, "m": momentum[i], "lr": rate[step - 1], "sign": sign,
		                     "decay": 0.1 if len(shape) > 1 else 0}
		            exec(rule, names)
		            assert rounded(names["w1"]) == got, (step, name, i, names["w1"], got, w, g)
		            momentum[i], moved = rounded(names["m1"]), moved + (got != w)
		    before = after
		assert moved > 10000, moved
	PY
}

# ---- optimizers

@test "lion: two steps are the paper's algorithm, number by number, and its gradients are PyTorch's" {
	make_run "$CASE/model" --dtype fp32
	spawn stream mt-stream "$RUN" --threads 1
	spawn lion lion "$RUN"
	a_step 1
	a_step 2
	same_as '
c = 0.9 * m + (1 - 0.9) * g
w1 = w - lr * (sign(c) + decay * w)
m1 = 0.99 * m + (1 - 0.99) * g'
	python3 "$GOLDEN/compare.py" "$CASE" --grad1 "$T/g1.safetensors"
}

@test "lion: a clipped gradient is scaled before it enters m; a run that is not fp32 is refused with 78" {
	make_run "$CASE/model" --dtype fp32
	spawn stream mt-stream "$RUN" --threads 1
	spawn lion lion "$RUN"
	a_step 1 --clip 1e-60           # so m stays 0
	a_step 2 --clip 1e-60
	same_as '
w1 = w - lr * (sign(g) + decay * w)
m1 = 0'
	RUN=$(mt_run_name b)
	make_run "$CASE/model" --dtype fp32 --state bf16
	fails_with 78 lion "$RUN"
}

@test "lion: loss, norm and terms of the loss are mt-optim's, with tied embeddings, several mt-streams and experts" {
	for model in qwen3 mixtral-aux; do
		for optim in mt-optim lion; do
			RUN=$(mt_run_name "$model-$optim")
			make_run "$GOLDEN/$model/model" --dtype fp32 --grad fp32
			spawn one mt-stream "$RUN" --threads 1
			spawn two mt-stream "$RUN" --threads 1
			spawn optim "$optim" "$RUN"
			mt-step "$RUN" --steps 1 --batch 4 --micro 1 --seq 20 --lr 1e-3 --eval "$GOLDEN/$model/data.bin" \
				--eval-every 1 --wait 60 <"$GOLDEN/$model/data.bin" >>"$T/metrics"
		done
	done
	python3 - "$T/metrics" <<-'PY'
		import json, sys
		lines = [json.loads(line) for line in open(sys.argv[1])]
		drop = ("tokens_per_s", "time_s", "eval_loss")
		tied, own_tied, experts, own = [line for line in lines if line["step"] == 1]
		assert experts["aux_loss"] > 0
		for a, b in (tied, own_tied), (experts, own):
		    for key in a.keys() - drop:
		        assert a[key] == b[key] or abs(a[key] - b[key]) < 1e-5 * abs(a[key]), (key, a, b)
		assert sum("eval_loss" in line for line in lines) == 8, lines
	PY
}

@test "lion: killed while a step is open, and continued from a checkpoint, it ends with the same bits" {
	make_run "$CASE/model" --dtype fp32
	spawn stream mt-stream "$RUN" --threads 1
	spawn ckpt mt-ckpt serve "$RUN" --dir "$T/out"
	spawn lion lion "$RUN"
	eventually sh -c "mt-store ls $RUN | grep -q mt-ckpt"
	train --ckpt-every 2 --eval "$CASE/data.bin" --eval-every 2
	bits "$RUN" >"$T/want"

	RUN=$(mt_run_name b)
	make_run "$T/out/step-00000002" --dtype fp32
	spawn stream mt-stream "$RUN" --threads 1
	stream=$PID
	eventually shows "mt-stream 0 .*pid $stream"
	kill -STOP "$stream"
	spawn lion lion "$RUN"
	lion=$PID
	spawn step sh -c 'exec mt-step "$@" <"$0"' "$CASE/data.bin" "$RUN" $(with "$STEP")
	step=$PID
	eventually shows "mt-optim.*pid $lion"
	eventually shows 'accumulate, train step 3,'
	kill -9 "$lion"
	spawn lion lion "$RUN"
	kill -CONT "$stream"
	wait "$step"
	eventually at_step 4
	bits "$RUN" | diff "$T/want" -
}

@test "lion: killed while it applies a step, its successor marks the run dirty and exits 65" {
	make_run "$CASE/model" --dtype fp32
	spawn stream mt-stream "$RUN" --threads 1
	spawn ckpt mt-ckpt serve "$RUN" --dir "$T/out"
	ckpt=$PID
	spawn lion lion "$RUN"
	lion=$PID
	eventually shows "mt-ckpt.*pid $ckpt"
	# step 1 is pinned, and nobody copies it, so step 2 is committed and not applied. Step 3 opens meanwhile.
	kill -STOP "$ckpt"
	spawn step sh -c 'exec mt-step "$@" <"$0"' "$CASE/data.bin" "$RUN" $(with "$STEP" --ckpt-every 1)
	eventually shows 'accumulate, train step 3,'
	kill -9 "$lion"
	fails_with 65 lion "$RUN"
	grep -q "store is dirty" "$T/fails.err"
}

@test "lion: a piece outside its unit exits 70 with one line" {
	region() { python3 "$TOP/tests/lib/region.py" "${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$RUN.rings" "$@"; }
	grad=$((256 + 8 * 256)) # ring grad.0: struct mt_ringbuf
	sent() { [ "$(region grad.0.tail)" -ge 2 ]; }
	make_run "$CASE/model" --dtype fp32
	spawn lion lion "$RUN"
	lion=$PID
	eventually shows "mt-optim.*pid $lion"
	kill -STOP "$lion"
	spawn stream mt-stream "$RUN" --threads 1
	spawn step sh -c 'exec mt-step "$@" <"$0"' "$CASE/data.bin" "$RUN" $(with "$STEP")
	eventually sent
	region $(($(region $((grad + 40))) + 64 + 24)) 1000 # the second message's unit
	kill -CONT "$lion"
	exits 70 wait "$lion"
	[ "$(cat "$T/lion.err")" = "lion: ring 'grad.0': message of txn 1, micro-batch 0, kind 3: not what is due" ]
}

@test "sgd.py: two steps are w - lr g, number by number" {
	need_atomic
	make_run "$CASE/model" --dtype fp32
	spawn stream mt-stream "$RUN" --threads 1
	spawn sgd sgd.py "$RUN"
	a_step 1 --micro 4 --lr 0.5
	a_step 2 --micro 4 --lr 0.5
	same_as 'w1, m1 = w - lr * g, 0'
	# its slot is locked as C stages lock theirs
	fails_with 75 mt-optim "$RUN"
}

# Start sgd.py with an mt-store whose table of offsets is changed: by_table SED-SCRIPT
by_table() {
	mkdir -p "$T/bin"
	mt-store stat --abi --json | sed "$1" >"$T/abi.json"
	no cmp -s "$T/abi.json" <(mt-store stat --abi --json)
	printf '#!/bin/sh\n[ "$*" = "stat --abi --json" ] && exec cat "%s"\n' "$T/abi.json" >"$T/bin/mt-store"
	chmod +x "$T/bin/mt-store"
	spawn sgd env PATH="$T/bin:$PATH" sgd.py "$RUN"
}

@test "sgd.py takes ABI and offsets from mt-store: another ABI is refused, exchanged offsets exchange what it reads" {
	need_atomic
	make_run "$CASE/model" --dtype fp32
	mt-ckpt export "$RUN" "$T/before" 2>/dev/null
	by_table 's/"abi":[0-9]*,/"abi":99,/'
	exits 1 wait "$PID"
	grep -q 'control: another ABI' "$T/sgd.err"
	# lr and decay, which is 0, are exchanged in mt_txn
	by_table 's/\("mt_txn":.*"lr":{"offset":\)88\(.*"decay":{"offset":\)120/\1120\288/'
	spawn stream mt-stream "$RUN" --threads 1
	train --micro 4 --lr 0.5 --wd 0 --until 1
	mt-ckpt export "$RUN" "$T/after" 2>/dev/null
	cmp "$T/before/model.safetensors" "$T/after/model.safetensors"
}

# ---- filters

filtered() { # FACTOR
	make_run "$CASE/model" --dtype fp32
	mt-store ring "$RUN" raw.0 --like grad.0
	spawn scale scale "$RUN" raw.0 grad.0 "$1"
	spawn stream mt-stream "$RUN" --threads 1 --ring grad.0=raw.0
	spawn optim mt-optim "$RUN" --threads 1
}

@test "scale: a factor of 1 gives the bits of a run without it, and 0.5 halves the gradient's norm" {
	ready
	train
	bits "$RUN" >"$T/want"
	RUN=$(mt_run_name b)
	filtered 1
	train
	bits "$RUN" | diff "$T/want" -
	RUN=$(mt_run_name c)
	filtered 0.5
	train --until 1
	python3 - "$T/metrics" <<-'PY'
		import json, sys
		norms = [json.loads(line)["grad_norm"] for line in open(sys.argv[1])]
		assert len(norms) == 9 and norms[0] == norms[4] and abs(norms[8] - norms[0] / 2) < 1e-6 * norms[0], norms
	PY
}

@test "scale: a factor of 0 leaves the weights as they are" {
	filtered 0
	mt-ckpt export "$RUN" "$T/before" 2>/dev/null
	train --wd 0
	[ "$(committed)" = 4 ]
	mt-ckpt export "$RUN" "$T/after" 2>/dev/null
	cmp "$T/before/model.safetensors" "$T/after/model.safetensors"
}

@test "min-length.py drops short documents and copies the others as they are; a cut record exits 65" {
	printf '\002\0\0\0abcdefgh\003\0\0\0ABCDEFGHIJKL\001\0\0\0wxyz' >"$T/in"
	min-length.py 2 <"$T/in" | cmp - <(printf '\002\0\0\0abcdefgh\003\0\0\0ABCDEFGHIJKL')
	min-length.py 3 <"$T/in" | cmp - <(printf '\003\0\0\0ABCDEFGHIJKL')
	min-length.py 0 <"$CASE/data.bin" | cmp - "$CASE/data.bin"
	code=0
	head -c 7 "$T/in" | min-length.py 1 2>"$T/err" >"$T/out" || code=$?
	[ "$code" = 65 ]
	[ "$(cat "$T/err")" = "min-length: stdin ends inside a record" ]
	# in a pipeline
	ready
	min-length.py 8 <"$CASE/data.bin" | mt-step "$RUN" --steps 2 --batch 2 --seq 32 --lr 1e-3 >"$T/m" 2>"$T/step.err"
	[ "$(wc -l <"$T/m")" = 2 ]
}

# ---- scripts

@test "the scripts of the examples pass shellcheck" {
	need_cmd shellcheck
	shellcheck "$EXAMPLES/sweep" "$EXAMPLES/dpo" "$EXAMPLES/policy" "$EXAMPLES/systemd/mt-fill"
}

# bats test_tags=slow
@test "sweep prints the mean loss of each learning rate, which is lowest, and which one failed" {
	need_cmd flock
	run sweep "$T/sweep" "1e-5 1e-2 1e30" --model "$CASE/model" --data "$CASE/data.bin" --steps 6 --batch 4 --seq 32 \
		--dtype fp32 --threads 1 --max-skipped 2
	[ "$status" = 0 ]
	grep -qE '^1e-5 +[0-9]\.[0-9]{4}$' <<<"$output"
	grep -qE '^1e30 +failed with 65$' <<<"$output"
	grep -qx 'lowest: 1e-2' <<<"$output"
	want=$(python3 -c 'import json, sys
losses = [json.loads(line)["loss"] for line in open(sys.argv[1])]
assert len(losses) == 6
print("%.4f" % (sum(losses) / 6))' "$T/sweep/lr-1e-2/metrics.jsonl")
	grep -qE "^1e-2 +$want\$" <<<"$output"
	# again, with another rate: only that one is trained
	touch -d 2001-01-01 "$T/sweep/lr-1e-5/loss"
	run sweep "$T/sweep" "1e-5 3e-3" --model "$CASE/model" --data "$CASE/data.bin" --steps 6 --batch 4 --seq 32 \
		--dtype fp32 --threads 1
	[ "$status" = 0 ]
	grep -qx 'lowest: 3e-3' <<<"$output"
	[ "$(date -r "$T/sweep/lr-1e-5/loss" +%Y)" = 2001 ]
}

# The units with this machine's paths, for the user who runs the test: units DIR
units() {
	mkdir -p "$T/units" "$T/etc" "$T/lib/$RUN"
	for unit in "$EXAMPLES"/systemd/*@.*; do
		sed -e "s,/usr/local/bin,$MT,; s,/usr/local/libexec,$EXAMPLES/systemd,; s,^User=mt$,," \
			-e "s,/var/lib/mt,$T/lib,g; s,/etc/mt,$T/etc,g" "$unit" >"$T/units/${unit##*/}"
	done
	printf '%s\n' "MODEL=$CASE/model" 'CREATE=--dtype fp32' 'STREAM=--threads 1' 'OPTIM=--threads 1' \
		"STEP=$(with "$STEP" --steps 40 --ckpt-every 10)" >"$T/etc/$RUN.env"
	for i in 1 2 3 4; do cat "$CASE/data.bin"; done >"$T/lib/$RUN/data.rec"
}

@test "systemd accepts the units" {
	need_cmd systemd-analyze
	units
	for unit in "$T"/units/*@.*; do
		name=$(basename "$unit")
		ln -sf "$unit" "$T/units/${name/@/@demo}"
	done
	SYSTEMD_UNIT_PATH=$T/units: systemd-analyze verify --man=no "$T/units/mt@demo.target" \
		"$T/units/mt-export@demo.service" >"$T/verify" 2>&1
	no grep -F "$T/units" "$T/verify"
}

# What systemd does with a service: its command, again when a signal has killed it. service NAME
service() {
	local file="$T/units/mt-$1@.service" command input
	command=$(sed -n 's/^ExecStart=//p' "$file" | sed "s,%i,$RUN,g")
	input=$(sed -n 's/^StandardInput=file://p' "$file" | sed "s,%i,$RUN,g")
	grep -qE '^(Restart=on-abnormal|Type=oneshot)$' "$file"
	spawn "$1" env "$(grep '^STREAM=' "$T/etc/$RUN.env")" "$(grep '^OPTIM=' "$T/etc/$RUN.env")" \
		"$(grep '^STEP=' "$T/etc/$RUN.env")" "$(grep '^MODEL=' "$T/etc/$RUN.env")" \
		"$(grep '^CREATE=' "$T/etc/$RUN.env")" sh -c '
		trap "kill \$!" TERM
		while :; do
			('"exec $command"') <"$1" & echo $! >"$2"
			echo $! >>"$3"
			wait $!; rc=$?
			[ $rc -gt 128 ] && [ $rc != 143 ] || exit $rc
		done' sh "${input:-/dev/null}" "$T/$1.pid" "$T/pids"
}

# bats test_tags=slow
@test "the units' commands, each killed and started again as the units say, end with an undisturbed run's bits" {
	units
	mt-run --run "$RUN" --model "$CASE/model" --data "$T/lib/$RUN/data.rec" --out "$T/want" --threads 1 --dtype fp32 \
		--no-shuffle $(with "$STEP" --steps 40) >"$T/want.metrics" 2>"$T/want.err"
	service fill
	wait "$PID"
	for name in store stream optim ckpt; do
		service $name
		eventually sh -c "mt-store ls $RUN | grep -q mt-$name"
	done
	# while a step is open, since mt-stream is stopped
	kill -STOP "$(cat "$T/stream.pid")"
	service step
	step=$PID
	eventually shows 'accumulate, train step 1,'
	for name in store optim ckpt step stream; do
		old=$(cat "$T/$name.pid")
		kill -9 "$old"
		eventually sh -c "[ \$(cat $T/$name.pid) != $old ]"
		[ $name = stream ] || eventually shows "mt-$name .*pid $(cat "$T/$name.pid") "
	done
	wait "$step"
	[ "$(wc -l <"$T/lib/$RUN/metrics.jsonl")" = 40 ]
	service export
	wait "$PID"
	cmp "$T/want/model/model.safetensors" "$T/lib/$RUN/model/model.safetensors"
	# after a power cut: nothing is in memory, and mt-fill loads the newest checkpoint
	for name in store stream optim ckpt; do kill "$(cat "$T/$name.pid")"; done
	mt-store rm "$RUN" --force
	service fill
	wait "$PID"
	[ "$(committed)" = 40 ]
}

@test "choices.py: the answer with the highest log-probability, in all and a token" {
	python3 - "$T/questions" "$T/rec" <<-'END'
		import array, json, random, sys
		draw = random.Random(5)
		questions, documents = [], []
		for n in range(12):
		  choices = [[draw.randrange(101) for _ in range(draw.randint(1, 6))] for _ in range(draw.randint(2, 4))]
		  prompt = [draw.randrange(101) | 1 << 31 for _ in range(5)]
		  answer = draw.randrange(len(choices))
		  questions.append({"question": "q", "choices": [str(c) for c in choices], "answer": answer})
		  documents += [prompt + c for c in choices]
		with open(sys.argv[1], "w") as f:
		  f.writelines(json.dumps(q) + "\n" for q in questions)
		with open(sys.argv[2], "wb") as f:
		  for d in documents:
		    f.write(array.array("I", [len(d)] + d).tobytes())
	END
	[ "$(choices.py expand "$T/questions" | wc -l)" -gt 24 ]
	mt-run --score --model "$CASE/model" --data "$T/rec" --seq 32 --run "$RUN" >"$T/lines"
	choices.py judge "$T/questions" <"$T/lines" >"$T/judged"
	python3 - "$T/questions" "$T/lines" "$T/judged" <<-'END'
		import json, sys
		questions, lines, judged = ([json.loads(l) for l in open(f)] for f in sys.argv[1:])
		right = mean = 0
		for q in questions:
		  mine, lines = lines[:len(q["choices"])], lines[len(q["choices"]):]
		  answer = mine[q["answer"]]
		  right += all(answer["logp"] >= m["logp"] for m in mine)
		  mean += all(answer["logp"] / answer["targets"] >= m["logp"] / m["targets"] for m in mine)
		assert judged == [{"questions": 12, "accuracy": right / 12, "accuracy_by_token": mean / 12}], judged
		assert 0 < right < 12
	END
	fails_with 1 sh -c 'choices.py judge "$0" </dev/null' "$T/questions"
}

@test "dpo: from JSON lines to a model whose answers are the chosen ones; the first loss is ln 2" {
	has tokenizers jinja2 || skip "needs tokenizers and jinja2 (make venv)"
	byte_model "$T/model"
	printf '#!/bin/sh\nexec "%s" "%s/mt-tokens" "$@"\n' "$PYTHON" "$MT" >"$T/mt-tokens"
	chmod +x "$T/mt-tokens"
	for i in $(seq 40); do
		echo '{"prompt": [{"role": "user", "content": "'"$i"'"}], "chosen": [{"role": "assistant", "content": "yes"}],
			"rejected": [{"role": "assistant", "content": "no '"$i"'"}]}' | tr -d '\n'
		echo
	done >"$T/pairs.jsonl"
	PATH=$T:$PATH dpo "$T/model" "$T/pairs.jsonl" "$T/out" 128 --dtype fp32 --lr 3e-3 --batch 10 --epochs 3 \
		--threads 1 --run "$RUN" >"$T/m" 2>"$T/err" || { cat "$T/err"; return 1; }
	[ -e "$T/out/model/model.safetensors" ]
	python3 - "$T/out/metrics.jsonl" <<-'PY'
		import json, math, sys
		lines = [json.loads(line) for line in open(sys.argv[1])]
		first, last = lines[0], lines[-1]
		assert len(lines) == 6 and abs(first["loss"] - math.log(2)) < 1e-6, lines
		assert max(abs(first[key]) for key in ("reward_chosen", "reward_rejected", "margin")) < 1e-5, first
		assert last["accuracy"] == 1 and last["margin"] > 0.5 and last["loss"] < 0.5, last
	PY
	exits 64 dpo "$T/model" "$T/pairs.jsonl" "$T/out" 2>"$T/err"
}

@test "harness.py: lm-evaluation-harness gets from mt what its HFLM computes: sums, greedy, rolling windows, texts" {
	has lm_eval torch transformers || skip "needs lm_eval, torch and transformers"
	byte_model "$T/model"
	with_torch - "$EXAMPLES" "$T/model" <<-'PY'
		import random, sys
		sys.path.insert(0, sys.argv[1])
		from harness import MT
		from lm_eval.api.instance import Instance
		from lm_eval.models.huggingface import HFLM
		import torch
		model = sys.argv[2]
		theirs = HFLM(model, device="cpu", dtype="float32", batch_size=1, max_length=63)
		ours = MT(model, 64, "fp32", ["--threads", "1"])
		asked = lambda kind, *args: Instance(kind, {}, args, 0)
		near = lambda a, b: abs(a - b) < 1e-5 * max(1, abs(b))
		pairs = [("Who?", " I"), ("Who? ", "I"), ("", "naïve"), ("a" * 90, "b" * 20), ("x", "y" * 62)]
		requests = [asked("loglikelihood", *pair) for pair in pairs]
		draw, tokens = random.Random(1), []
		for n in range(8):                  # half of them the argmax
		    ids = [draw.randrange(256) for _ in range(5)]
		    for _ in range(6 if n % 2 else 0):
		        ids.append(int(theirs.model(torch.tensor([ids])).logits[0, -1].argmax()))
		    tokens.append((("", ""), ids[:5], ids[5:] or [draw.randrange(256)]))
		for a, b in ((ours.loglikelihood(requests), theirs.loglikelihood(requests)),
		             (ours._loglikelihood_tokens(tokens), theirs._loglikelihood_tokens(tokens))):
		    print(max(abs(x[0] - y[0]) for x, y in zip(a, b, strict=True)), a)
		    assert all(near(x[0], y[0]) and x[1] is y[1] for x, y in zip(a, b, strict=True)), (a, b)
		assert [greedy for _, greedy in a] == [False, True] * 4, a
		requests = [asked("loglikelihood_rolling", text) for text in ("short", "naïve — 東京 " * 15)]
		a, b = ours.loglikelihood_rolling(requests), theirs.loglikelihood_rolling(requests)
		print(a, b)
		assert all(map(near, a, b)) and len(a) == 2, (a, b)
		texts = theirs.generate_until([asked("generate_until", "Who?", {"until": [], "max_gen_toks": 24})])
		stop = texts[0][9:11]
		requests = [asked("generate_until", prompt, {"until": until, "max_gen_toks": 24, "do_sample": False})
		            for prompt in ("Who?", "Why") for until in ([], [stop])]
		a, b = ours.generate_until(requests), theirs.generate_until(requests)
		print(a)
		assert a == b and a[0] == texts[0] != a[1], (a, b)
	PY
}

# bats test_tags=slow
@test "policy: rounds of sampling, judging by a script and --loss pg raise the mean reward" {
	GROUP=16 policy "$CASE/model" "$T/out" 3 32 --dtype fp32 --lr 3e-2 --schedule constant --batch 16 --epochs 2 \
		--threads 1 2>"$T/err" || { cat "$T/err"; return 1; }
	sed -n 's/^mean reward: //p' "$T/err" >"$T/rewards"
	python3 - "$T/rewards" "$T"/out/[123]/metrics.jsonl <<-'PY'
		import json, sys
		rewards = [float(line) for line in open(sys.argv[1])]
		assert len(rewards) == 3 and rewards[0] < 0.6 and rewards[2] > rewards[0] + 0.2, rewards
		for name in sys.argv[2:]:
		    lines = [json.loads(line) for line in open(name)]
		    assert len(lines) == 8 and abs(lines[0]["kl"]) < 1e-4 and lines[0]["clip_fraction"] == 0, lines[0]
		    assert all(0 <= line["clip_fraction"] < 1 for line in lines), lines
	PY
	[ -e "$T/out/3/model/model.safetensors" ]
}

# ---- mtweights.py

@test "mtweights.py: names, dtypes, shapes and bytes are those of an export, of each way in which files have tensors" {
	need_atomic
	local case dtype
	python3 "$TOP/tests/lib/wrap.py" "$GOLDEN/gemma3/model" "$T/wrapper" gemma3
	python3 "$TOP/tests/lib/forms.py" "$GOLDEN/qwen3-moe/model" "$T/transposed" transposed
	for case in "$GOLDEN"/{qwen3,glm4-moe,falcon-40b,qwen3-next,nemotron-h}/model "$T/wrapper" "$T/transposed"; do
		for dtype in bf16 fp32; do
			make_run "$case" --dtype $dtype
			mt-ckpt export "$RUN" "$T/export" 2>"$T/err"
			PYTHONPATH=$EXAMPLES:$TOP/tests/lib python3 - "$RUN" "$T/export" <<-'END'
				import sys
				from mtweights import Weights
				from wrap import CARRIED, read
				want = {k: (d, list(s), bytes(b)) for k, (d, s, b) in read(sys.argv[2]).items() if k not in CARRIED}
				assert Weights(sys.argv[1]).read() == want
			END
			mt-store rm "$RUN"
			rm -r "$T/export"
		done
	done
}

# reads N OPTIONS...: N reads by tests/lib/live.py beside trainings of 60 steps, of each of which there is a checkpoint
reads() {
	need_atomic
	local options="--steps 60 --batch 8 --seq 33 --lr 1e-3 --wait 60"
	documents 480 33 >"$T/data"
	make_run "$CASE/model"
	mkdir "$T/ck"
	mt-ckpt export "$RUN" "$T/ck/step-00000000"
	start_stages
	spawn serve mt-ckpt serve "$RUN" --dir "$T/ck" --keep 100
	mt-step "$RUN" $options --ckpt-every 1 <"$T/data" >"$T/metrics"
	kill "$STREAM" "$OPTIM" "$PID"
	wait "$STREAM" "$OPTIM" "$PID" || true
	PYTHONPATH=$EXAMPLES with_torch "$TOP/tests/lib/live.py" "$RUN" "$CASE/model" "$T/ck" "$T/data" "$@" -- $options \
		>"$T/out" 2>"$T/err" ||
		{ cat "$T/err"; return 1; }
}

# bats test_tags=slow
@test "mtweights.py: 400 reads beside a training whose stages are killed are of one step each" {
	reads 400
	grep "^400 reads .*: none torn" "$T/out"
}

# bats test_tags=slow
@test "mtweights.py: reads that do not look whether they were overtaken are torn" {
	no reads 4000 --unchecked
	grep "AssertionError: torn: read " "$T/err"
}

# bats test_tags=slow
@test "mtvllm.py: 300 updates of a stub of vLLM beside a training whose stages are killed have the bytes of one step" {
	need_torch
	reads 300 --vllm
	grep "^300 reads .*: none torn" "$T/out"
}

@test "mtvllm.py: a worker that wants a step which is not the newest any more loads nothing and raises Overtaken" {
	need_atomic
	need_torch
	make_run "$CASE/model"
	start_stages
	mt-step "$RUN" --steps 2 --batch 4 --seq 32 --lr 1e-3 <"$CASE/data.bin" >"$T/metrics"
	PYTHONPATH=$EXAMPLES:$TOP/tests/lib with_torch - "$RUN" <<-'END'
		import sys
		from vllm_stub import Worker
		from mtweights import Overtaken
		worker = Worker(sys.argv[1])
		assert len(worker.update(step=2)) == len(worker.update(after=1)) > 15
		try:
		    worker.update(step=1)
		except Overtaken as e:
		    assert "step 1 is not the newest any more: 2 is" in str(e) and worker.model.tensors is None
		else:
		    assert False
	END
}

# bats test_tags=nightly
@test "mtweights.py: 10,000 reads beside --update early under kills are of one step each" {
	reads 10000 --update early
	grep "^10000 reads .*: none torn" "$T/out"
}

# bats test_tags=slow
@test "grpo.py: rounds of sampling by transformers, rewards and --loss pg on one run raise the mean reward" {
	need_atomic
	need_torch
	mkdir "$T/model"
	sed 's/"vocab_size": [0-9]*/"vocab_size": 16/' "$CASE/model/config.json" >"$T/model/config.json"
	with_torch "$EXAMPLES/grpo.py" "$T/model" "$T/out" 8 --steps 200 --lr 1e-2 --batch 4 2>"$T/err" || {
		cat "$T/err" "$T/out/log"
		return 1
	}
	python3 - "$T/out/metrics.jsonl" <<-'END'
		import json, sys
		lines = [json.loads(line) for line in open(sys.argv[1])]
		rewards = [line["reward"] for line in lines if "reward" in line]
		first = [line["kl"] for before, line in zip(lines, lines[1:]) if "reward" in before]
		assert len(rewards) == len(first) == 8 and rewards[-1] > 2 * rewards[0], rewards
		assert all(abs(kl) < 1e-3 for kl in first), first   # each round's first step is on its own samples
	END
	[ -e "$T/out/model/model.safetensors" ]
}
