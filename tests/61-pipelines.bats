# The programs composed by hand, and with custom stages.
load helpers

CASE=$GOLDEN/llama2

@test "the five programs composed by hand train and export a model" {
	mt-store create "$RUN" --config "$CASE/model" --dtype fp32 2>/dev/null
	spawn store mt-store serve "$RUN"
	eventually grep -qx ready "$T/store.out"
	mt-ckpt load "$RUN" "$CASE/model"
	spawn ckpt mt-ckpt serve "$RUN" --dir "$T/out"
	start_stages
	mt-feed "$CASE/data.bin" | mt-step "$RUN" $(cat "$CASE/args") --ckpt-every 10 >"$T/metrics" 2>"$T/step.err"
	[ "$(wc -l <"$T/metrics")" = 20 ]
	python3 "$GOLDEN/compare.py" "$CASE" --metrics "$T/metrics"
	mt-ckpt export "$RUN" "$T/model"
	python3 "$GOLDEN/compare.py" "$CASE" --final "$T/model"
	mt-ckpt verify "$T/out/step-00000020"
	mt-store rm "$RUN" --force
	gone "$RUN"
}

# Waits of these stages have no time-out: one that sleeps through what it waits for never ends
PATIENT="env LD_PRELOAD=$PROBES/so-patient.so"

# Gradients are more than their rings hold
train_patiently() { # STREAMS CREATE-OPTIONS...
	local i streams=$1 pids
	shift
	mt-store create "$RUN" --config "$CONFIGS/demo.json" --dtype fp32 "$@" 2>/dev/null
	mt-store init "$RUN" --seed 1 2>/dev/null
	for i in $(seq "$streams"); do spawn "stream$i" $PATIENT mt-stream "$RUN" --device cpu --threads 1; done
	spawn optim $PATIENT mt-optim "$RUN" --threads 2
	spawn ckpt $PATIENT mt-ckpt serve "$RUN" --dir "$T/out"
	pids=$(cat "$T/pids")
	for i in $(seq 20); do printf '\004\0\0\0\001\0\0\0\002\0\0\0\003\0\0\0\004\0\0\0'; done >"$T/data"
	head -c 80 "$T/data" >"$T/eval"
	$PATIENT timeout 200 mt-step "$RUN" --steps 5 --batch 4 --micro "$((4 / streams / streams))" --seq 4 --lr 1e-3 \
		--ckpt-every 2 --eval "$T/eval" --eval-every 2 <"$T/data" >"$T/metrics" 2>"$T/step.err"
	[ "$(grep -c '"loss"' "$T/metrics")" = 5 ]
	mt-store rm "$RUN" --force       # wakes them all
	for i in $pids; do wait "$i"; done
}

@test "no stage needs the time-out of a wait while training, evaluating and saving" { train_patiently 2; }

@test "no stage needs the time-out of a wait with --grad none" { train_patiently 1 --grad none; }

@test "stages can be started in any order, and before the run is filled" {
	local lr=$(awk '{ print $8 }' "$CASE/args")
	spawn optim mt-optim "$RUN"
	spawn step sh -c 'exec mt-step "$0" '"$(cat "$CASE/args")"' <"$1"' "$RUN" "$CASE/data.bin"
	local step=$PID
	mt-store create "$RUN" --config "$CASE/model" --dtype fp32 2>/dev/null
	spawn stream mt-stream "$RUN" --device cpu --threads 1
	mt-ckpt load "$RUN" "$CASE/model"
	wait "$step"
	python3 "$GOLDEN/compare.py" "$CASE" --metrics "$T/step.out"
}

@test "records written by printf train like any others" {
	ready
	printf '\004\0\0\0\001\0\0\0\002\0\0\0\003\0\0\0\004\0\0\0\003\0\0\0\005\0\0\200\006\0\0\0\007\0\0\0' |
		mt-step "$RUN" --steps 1 --batch 1 --seq 8 --lr 0 >"$T/metrics" 2>"$T/step.err"
	grep -q '"tokens": 5,' "$T/metrics"     # 3 + 2 targets: the second document's prompt is context only
}

@test "records written by awk train like any others" {
	need_cmd gawk
	ready
	gawk 'BEGIN {
		BINMODE = 3
		for (d = 0; d < 8; d++) {
			printf "%c\0\0\0", 16
			for (i = 0; i < 16; i++) printf "%c\0\0\0", (d * 7 + i * 3) % 90
		}
	}' |
		mt-step "$RUN" --steps 2 --batch 4 --seq 16 --lr 1e-3 >"$T/metrics" 2>"$T/step.err"
	[ "$(grep -c '"tokens": 60,' "$T/metrics")" = 2 ]
}

# bats test_tags=slow
@test "a custom stage written from shm/PROTOCOL.md between mt-stream and mt-optim changes no bit" {
	ready
	mt-step "$RUN" $(cat "$CASE/args") <"$CASE/data.bin" >"$T/plain" 2>/dev/null
	mt-store rm "$RUN" --force

	make_run "$CASE/model" --dtype fp32
	mt-store ring "$RUN" mine --like grad.0
	spawn between python3 "$TOP/tests/lib/between.py" "$RUN" grad.0 mine
	eventually grep -qx ready "$T/between.out"
	spawn stream mt-stream "$RUN" --device cpu --threads 1
	spawn optim mt-optim "$RUN" --threads 1 --ring grad.0=mine
	mt-step "$RUN" $(cat "$CASE/args") <"$CASE/data.bin" >"$T/metrics" 2>"$T/step.err"
	[ "$(timeless "$T/plain")" = "$(timeless "$T/metrics")" ]
	mt-store rm "$RUN" --force
	eventually grep -q '20 losses, 80 pieces' "$T/between.err"
}

@test "a custom stage that halves the gradients halves the norm" {
	make_run "$CASE/model" --dtype fp32
	mt-store ring "$RUN" mine --like grad.0
	spawn between python3 "$TOP/tests/lib/between.py" "$RUN" grad.0 mine --scale 0.5
	eventually grep -qx ready "$T/between.out"
	spawn stream mt-stream "$RUN" --device cpu --threads 1
	spawn optim mt-optim "$RUN" --threads 1 --ring grad.0=mine
	mt-step "$RUN" $(cat "$CASE/args") --until 1 <"$CASE/data.bin" >"$T/metrics" 2>"$T/step.err"
	python3 - "$T/metrics" "$CASE/expect.json" <<-'EOF2'
		import json, sys
		got = json.loads(open(sys.argv[1]).readline())["grad_norm"]
		want = json.load(open(sys.argv[2]))["steps"][0]["grad_norm"]
		assert abs(got - want / 2) < 1e-5 * want, (got, want)
	EOF2
}

@test "a custom optimizer replaces mt-optim: Lion in thirty lines" {
	make_run "$CASE/model" --dtype fp32
	spawn stream mt-stream "$RUN" --device cpu --threads 1
	spawn lion "$BUILD/examples/lion" "$RUN"
	mt-step "$RUN" --steps 6 --batch 2 --seq 32 --lr 1e-2 --schedule constant \
		<"$CASE/data.bin" >"$T/metrics" 2>"$T/step.err"
	[ "$(wc -l <"$T/metrics")" = 6 ]
	python3 - "$T/metrics" <<-'EOF2'
		import json, sys
		losses = [json.loads(l)["loss"] for l in open(sys.argv[1])]
		assert losses[-1] < losses[0] - 0.1, losses
	EOF2
}
