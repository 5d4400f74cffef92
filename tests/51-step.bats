# mt-step: it reads records and writes metrics; what it refuses, what it survives.
load helpers

CASE=$GOLDEN/llama3
STEP="--steps 12 --batch 4 --micro 2 --seq 32 --lr 1e-3 --wait 5"


@test "every step prints a line with all documented fields" {
	ready
	mt-step "$RUN" $STEP <"$CASE/data.bin" >"$T/m"
	[ "$(steps <"$T/m")" = "$(seq -s ' ' 12)" ]
	python3 - "$T/m" <<-'PY'
	import json, sys
	for line in open(sys.argv[1]):
	    fields = ["step", "loss", "grad_norm", "lr", "tokens", "processed", "tokens_per_s", "time_s", "optim_wait",
	        "skipped"]
	    assert list(json.loads(line)) == fields, line
	PY
}

# bats test_tags=slow
@test "processed counts the documents' tokens, prompts too, but no padding, and tokens_per_s is their rate" {
	local pack
	# a prompt of 20 and an answer of 4, a document longer than a row, and one that leaves padding
	python3 -c 'import struct, sys
for d in [[5 | 1 << 31] * 20 + [6] * 4, [7] * 75, [8] * 9, [5 | 1 << 31] * 32] * 3:
    sys.stdout.buffer.write(struct.pack(f"<{len(d) + 1}I", len(d), *d))' >"$T/data"
	for pack in "docs --long split" "docs --long truncate" "docs --long drop" concat none; do
		RUN=$(mt_run_name "${pack##* }")
		ready
		mt-step "$RUN" $STEP --pack $pack <"$T/data" >"$T/m" 2>"$T/err"
		mt-step --count --batch 4 --seq 32 --pack $pack <"$T/data" >"$T/count"
		python3 - "$T/m" "$T/count" <<-'PY'
			import json, sys
			lines, count = [json.loads(line) for line in open(sys.argv[1])], json.load(open(sys.argv[2]))
			assert sum(m["processed"] for m in lines) == count["tokens"], (lines, count)
			assert sum(m["tokens"] for m in lines) == count["targets"], (lines, count)
			for m in lines:
			    assert abs(m["tokens_per_s"] * m["time_s"] / m["processed"] - 1) < 0.01, m
		PY
		mt-store rm "$RUN" --force
	done
}

@test "a run stopped by --until and continued by the same command gives the metrics of an uninterrupted run" {
	ready
	mt-step "$RUN" $STEP --pack concat <"$CASE/data.bin" | timeless >"$T/whole"
	RUN=$(mt_run_name b)
	ready
	mt-step "$RUN" $STEP --pack concat --until 5 <"$CASE/data.bin" >"$T/m"
	mt-step "$RUN" $STEP --pack concat <"$CASE/data.bin" >>"$T/m"
	timeless "$T/m" | cmp - "$T/whole"
}

# bats test_tags=slow
@test "a run killed at random and restarted by the same command gives the metrics of an undisturbed run" {
	for i in $(seq 30); do cat "$CASE/data.bin"; done >"$T/data"
	OPTS="--steps 300 --batch 4 --micro 2 --seq 32 --lr 1e-3 --wait 5 --eval $CASE/eval.bin --eval-every 7"
	ready
	mt-step "$RUN" $OPTS <"$T/data" | timeless >"$T/whole"
	[ "$(wc -l <"$T/whole")" = 301 ]
	RUN=$(mt_run_name b)
	ready
	# --foreground: timeout waits until the killed one is dead, and holds its slot no more
	for s in 0.05 0.11 0.07 0.13 0.03 0.17; do
		timeout --foreground -s KILL "$s" mt-step "$RUN" $OPTS <"$T/data" >>"$T/m" 2>/dev/null || true
	done
	mt-step "$RUN" $OPTS <"$T/data" >>"$T/m" 2>"$T/step.err"
	# a line may be written twice, with the same values
	timeless "$T/m" | awk '!seen[$0]++' | cmp - "$T/whole"
}

# bats test_tags=slow
@test "an evaluation of more than 4096 micro-batches survives kills" {
	for i in $(seq 500); do cat "$CASE/eval.bin"; done >"$T/eval"
	OPTS="--steps 2 --batch 2 --micro 1 --seq 32 --lr 1e-3 --wait 5 --eval $T/eval --eval-every 2"
	ready
	mt-step "$RUN" $OPTS <"$CASE/data.bin" | timeless >"$T/whole"
	[ "$(grep eval_loss "$T/whole" | steps)" = "0 2" ]
	RUN=$(mt_run_name b)
	ready
	for s in 0.3 0.6 0.9 0.5; do
		timeout --foreground -s KILL "$s" mt-step "$RUN" $OPTS <"$CASE/data.bin" >>"$T/m" 2>/dev/null || true
	done
	mt-step "$RUN" $OPTS <"$CASE/data.bin" >>"$T/m" 2>"$T/step.err"
	losses() { sed -n 's/.*"step": \([0-9]*\).*"eval_loss": \(.*\)}/\1 \2/p' "$1" | sort -u; }
	losses "$T/m"
	[ "$(losses "$T/m")" = "$(losses "$T/whole")" ]
}

@test "input that differs from the trained input exits 65, and --input new accepts it" {
	ready
	mt-step "$RUN" $STEP --until 3 <"$CASE/data.bin" >/dev/null
	exits 65 mt-step "$RUN" $STEP <"$GOLDEN/llama3/eval.bin" >"$T/m" 2>"$T/err"
	[ ! -s "$T/m" ]
	grep -q "input new" "$T/err"
	mt-step "$RUN" $STEP --until 4 --input new <"$GOLDEN/llama3/eval.bin" >"$T/m"
	[ "$(steps <"$T/m")" = 4 ]
}

@test "input whose partly trained document is now shorter exits 65" {
	ready
	{ printf '\200\0\0\0'; for i in $(seq 128); do printf '\1\0\0\0'; done; cat "$CASE/data.bin"; } >"$T/long"
	mt-step "$RUN" $(with "$STEP" --batch 1 --micro 1 --until 2) <"$T/long" >/dev/null
	exits 65 mt-step "$RUN" $(with "$STEP" --batch 1 --micro 1) <"$CASE/data.bin" >"$T/m" 2>"$T/err"
	[ ! -s "$T/m" ]
	grep -q "the first record differs" "$T/err"
	exits 65 mt-step "$RUN" $(with "$STEP" --batch 1 --micro 1) </dev/null >"$T/m" 2>"$T/err"
	grep -q "it ends after 0 records" "$T/err"
}

@test "a changed --seq, --batch or --pack needs --input new" {
	ready
	mt-step "$RUN" $STEP --until 3 <"$CASE/data.bin" >/dev/null
	fails_with 64 mt-step "$RUN" $(with "$STEP" --seq 16)
	fails_with 64 mt-step "$RUN" $(with "$STEP" --batch 8)
	fails_with 64 mt-step "$RUN" $STEP --pack none
	fails_with 64 mt-step "$RUN" $STEP --long drop
	grep -q -- "--seq 32 --batch 4 --pack docs --long split so far; other values need --input new" "$T/fails.err"
}

@test "a run with --long drop or truncate, stopped and continued, equals one without long documents" {
	python3 - "$CASE/data.bin" "$T" <<-'PY'
	import struct, sys
	data, at = open(sys.argv[1], "rb").read(), 0
	with open(sys.argv[2] + "/drop", "wb") as drop, open(sys.argv[2] + "/truncate", "wb") as truncate:
	    while at < len(data):
	        n, = struct.unpack_from("<I", data, at)
	        kept = min(n, 32)
	        truncate.write(struct.pack("<I", kept) + data[at + 4:at + 4 + 4 * kept])
	        if n <= 32:
	            drop.write(data[at:at + 4 + 4 * n])
	        at += 4 + 4 * n
	PY
	local long
	for long in drop truncate; do
		RUN=$(mt_run_name $long)
		ready
		mt-step "$RUN" $STEP <"$T/$long" 2>"$T/whole.err" | timeless >"$T/whole"
		[ "$(wc -l <"$T/whole")" = 12 ]
		[ ! -s "$T/whole.err" ]
		RUN=$(mt_run_name "b$long")
		ready
		mt-step "$RUN" $STEP --long $long --until 5 <"$CASE/data.bin" >"$T/m" 2>"$T/err"
		fails_with 64 mt-step "$RUN" $STEP
		grep -q -- "--long $long so far" "$T/fails.err"
		mt-step "$RUN" $STEP --long $long <"$CASE/data.bin" >>"$T/m" 2>>"$T/err"
		timeless "$T/m" | cmp - "$T/whole"
		grep -q "of documents (.*) are longer than --seq 32 and are ${long%e}" "$T/err"
	done
}

@test "an input of which --long drop drops every document exits 65" {
	printf '\011\0\0\0%036d' 0 | tr 0 '\0' >"$T/data"
	ready
	fails_with 65 sh -c "mt-step $RUN $(with "$STEP" --seq 8) --long drop <$T/data"
	grep -q "every document is longer than --seq 8" "$T/fails.err"
	fails_with 65 sh -c "mt-step --count $(with "$STEP" --seq 8) --long drop <$T/data"
	fails_with 64 mt-step "$RUN" $STEP --long cut
}

@test "a run that has reached --steps prints a message and exits 0" {
	ready
	mt-step "$RUN" $STEP <"$CASE/data.bin" >/dev/null
	mt-step "$RUN" $STEP <"$CASE/data.bin" >"$T/m" 2>"$T/err"
	[ ! -s "$T/m" ]
	grep -q "at step 12 already" "$T/err"
}

@test "input that ends early gives a shorter last step and a message, and exits 0" {
	ready
	head -c 4000 "$CASE/data.bin" | python3 -c '
import struct, sys
data = sys.stdin.buffer.read(); at = end = 0
while end <= len(data):
    at = end
    end += 4 + 4 * struct.unpack_from("<I", data, at)[0] if at + 4 <= len(data) else len(data) + 1
sys.stdout.buffer.write(data[:at])' >"$T/data"
	mt-step "$RUN" --steps 500 --batch 16 --seq 32 --lr 1e-3 --wait 5 <"$T/data" >"$T/m" 2>"$T/err"
	[ -s "$T/m" ]
	grep -q "input ended" "$T/err"
}

@test "input without any record exits 65" {
	ready
	fails_with 65 mt-step "$RUN" $STEP
}

@test "a truncated record exits 65, and the steps before it are kept" {
	ready
	{ cat "$CASE/data.bin"; printf '\011\0\0\0\001\0\0\0'; } >"$T/data"
	exits 65 mt-step "$RUN" --steps 500 --batch 4 --seq 32 --lr 1e-3 --wait 5 <"$T/data" >"$T/m" 2>"$T/err"
	[ "$(wc -l <"$T/err")" = 1 ]
	grep -q "ends after 1 of its 9 elements" "$T/err"
	[ "$(wc -l <"$T/m")" -ge 20 ]
	mt-store stat "$RUN" --json | grep -q "\"step\":$(tail -1 "$T/m" | steps)"
}

@test "a token outside the vocabulary exits 65 and is named by record and element" {
	ready
	code=0
	printf '\002\0\0\0\001\0\0\0\002\0\0\0\002\0\0\0\001\0\0\0\377\0\0\0' | mt-step "$RUN" $STEP >"$T/m" 2>"$T/err" ||
		code=$?
	[ "$code" = 65 ]
	[ ! -s "$T/m" ]
	grep -q "record 2, element 1: token 255 is outside the vocabulary of 101" "$T/err"
}

@test "a step without targets is skipped and counted" {
	ready
	python3 -c 'import struct,sys
for m in (0, 1 << 31, 0): sys.stdout.buffer.write(struct.pack("<5I", 4, 5 | m, 6 | m, 7 | m, 8 | m))' >"$T/data"
	mt-step "$RUN" --steps 3 --batch 1 --seq 4 --lr 1e-3 <"$T/data" >"$T/m"
	grep -q '"step": 2, "loss": null, .*"tokens": 0, .*"skipped": true' "$T/m"
	grep -q '"step": 3, "loss": [0-9].*"skipped": false' "$T/m"
}

@test "evaluations run at step 0, at every N-th step and at the last" {
	ready
	mt-step "$RUN" $STEP --eval "$CASE/eval.bin" --eval-every 5 <"$CASE/data.bin" >"$T/m"
	[ "$(grep eval_loss "$T/m" | steps)" = "0 5 10 12" ]
	[ "$(head -1 "$T/m" | grep -c '"step": 0, "eval_loss": [0-9.]*}')" = 1 ]
}

# bats test_tags=slow
@test "--stop-after N ends training after N evaluations in a row without a lower loss, as its metrics show" {
	local how="$(with "$STEP" --lr 0.08) --eval $CASE/eval.bin --eval-every 1" n
	ready
	mt-step "$RUN" $how <"$CASE/data.bin" >"$T/whole"
	for n in 1 2 4; do
		RUN=$(mt_run_name $n)
		ready
		mt-step "$RUN" $how --stop-after $n <"$CASE/data.bin" >"$T/m" 2>"$T/err"
		python3 - "$T/whole" "$T/m" $n "$(cat "$T/err")" <<-'PY'
			import json, sys
			whole, got = ([json.loads(line) for line in open(f)] for f in sys.argv[1:3])
			n, best, since, last = int(sys.argv[3]), float("inf"), 0, whole[-1]["step"]
			for m in whole:
			    since = 0 if m["eval_loss"] < best else since + 1
			    best = min(best, m["eval_loss"])
			    if since == n:
			        last = m["step"]
			        break
			assert [m["step"] for m in got] == list(range(last + 1)), (n, last, got)
			assert [m["eval_loss"] for m in got] == [m["eval_loss"] for m in whole[:last + 1]]
			evaluations = "1 evaluation" if n == 1 else f"{n} evaluations"
			said = f"stopped at step {last} of 12: {evaluations} in a row without a lower loss"
			assert (said in sys.argv[4]) == (since == n), sys.argv[4]
			assert n > 1 or last < 12, "with these data every test stops at the end"
		PY
	done
}

@test "--stop-after saves the step at which it stops, and stops at once when --metrics shows the evaluations" {
	ready
	spawn ckpt mt-ckpt serve "$RUN" --dir "$T/out"
	local how="$(with "$STEP" --lr 0) --eval $CASE/eval.bin --eval-every 2 --ckpt-every 100 --stop-after 3"
	mt-step "$RUN" $how --metrics "$T/f" <"$CASE/data.bin" >"$T/m" 2>"$T/err"
	[ "$(steps <"$T/m")" = "0 1 2 3 4 5 6" ]
	[ "$(grep -c "stopped at step 6 of 12" "$T/err")" = 1 ]
	mt-ckpt verify "$T/out/step-00000006"
	mt-step "$RUN" $how --metrics "$T/f" <"$CASE/data.bin" >"$T/m" 2>"$T/err"
	[ ! -s "$T/m" ]
	local loss
	loss=$(printf %.4f "$(head -n 1 "$T/f" | value eval_loss)")
	grep -q "stopped at step 6 of 12: 3 evaluations in a row without a lower loss than $loss at step 0" "$T/err"
	mt-step "$RUN" $how <"$CASE/data.bin" >"$T/m" 2>"$T/err" # counts from its start
	[ "$(steps <"$T/m")" = "7 8 9 10 11 12" ]
	no grep -q "stopped at" "$T/err"
}

@test "mt-ckpt serve --keep-best keeps the checkpoint of the lowest eval loss beside the newest" {
	local how="$(with "$STEP" --lr 0.2 --schedule constant) --eval $CASE/eval.bin --eval-every 2 --ckpt-every 2"
	ready
	spawn ckpt mt-ckpt serve "$RUN" --dir "$T/out" --keep 1 --keep-best "$T/f"
	mt-step "$RUN" $how --metrics "$T/f" <"$CASE/data.bin" >"$T/m" 2>"$T/err"
	best=$(python3 -c 'import json, sys
lines = [json.loads(line) for line in sys.stdin]
print(min((m["eval_loss"], m["step"]) for m in lines if m.get("eval_loss") and 0 < m["step"] < 12)[1])' <"$T/f")
	[ "$best" != 10 ] # that one would be the second newest
	want=$(printf 'step-%08d ' "$best" 12)
	eventually sh -c "[ \"\$(ls -A $T/out | tr '\n' ' ')\" = '$want' ]"
}

@test "mt-ckpt serve deletes nothing, and says why, while it cannot read --keep-best's file" {
	ready
	local last file why
	while read -r last file why; do
		rm -rf "$T/out"
		spawn ckpt mt-ckpt serve "$RUN" --dir "$T/out" --keep 1 --keep-best "$file"
		mt-step "$RUN" $(with "$STEP" --steps 6) --until $last --ckpt-every 1 <"$CASE/data.bin" >"$T/m" 2>"$T/err"
		eventually sh -c "[ \$(grep -c 'no old checkpoint is deleted: --keep-best $file: $why' $T/ckpt.err) = 2 ]"
		[ "$(ls "$T/out" | wc -l)" = 3 ]
		end "$PID"
	done <<-END
		3 $T/nowhere No such
		6 /dev/zero not a regular file
	END
}

@test "two streams give the bits of one" {
	ready
	mt-step "$RUN" $STEP <"$CASE/data.bin" | timeless >"$T/one"
	RUN=$(mt_run_name b)
	STREAMS=2 ready
	eventually sh -c "[ \$(mt-store ls $RUN | grep -c 'mt-stream') -ge 1 ]"
	mt-step "$RUN" $STEP <"$CASE/data.bin" | timeless | cmp - "$T/one"
}

# bats test_tags=slow
@test "a stream that is killed and restarted changes no bit" {
	for i in $(seq 30); do cat "$CASE/data.bin"; done >"$T/data"
	ready
	mt-step "$RUN" --steps 200 --batch 4 --micro 2 --seq 32 --lr 1e-3 <"$T/data" | timeless >"$T/one"
	RUN=$(mt_run_name b)
	ready
	(
		mt-step "$RUN" --steps 200 --batch 4 --micro 2 --seq 32 --lr 1e-3 --wait 20 \
			<"$T/data" >"$T/m" 2>"$T/step.err"
		echo $? >"$T/rc"
	) 3>&- &
	for i in 1 2 3; do
		sleep 0.05
		kill -9 "$STREAM"
		wait "$STREAM" || true
		spawn "again$i" mt-stream "$RUN" --device cpu --threads 1
		STREAM=$PID
	done
	eventually [ -s "$T/rc" ]
	[ "$(cat "$T/rc")" = 0 ]
	timeless "$T/m" | cmp - "$T/one"
}

@test "missing stages are named after --wait seconds, and mt-step exits 69" {
	make_run "$CASE/model"
	alone() {
		exits 69 mt-step "$RUN" $(with "$STEP" --wait 0.2) <"$CASE/data.bin" >"$T/m" 2>"$T/err"
	}
	alone
	grep -q "no mt-optim came" "$T/err"
	spawn optim mt-optim "$RUN" --threads 1
	eventually sh -c "mt-store stat $RUN | grep -q 'mt-optim'"
	alone
	grep -q "no mt-stream came" "$T/err"
	spawn stream mt-stream "$RUN" --device cpu --threads 1
	mt-step "$RUN" $STEP <"$CASE/data.bin" >"$T/m"
	[ "$(wc -l <"$T/m")" = 12 ]
}

@test "in a run with a tier mt-step needs mt-tier, too" {
	need_tier
	make_run "$CASE/model" --tier "$DISK/tier" --tier-memory 0
	spawn optim mt-optim "$RUN" --threads 1
	eventually sh -c "mt-store stat $RUN | grep -q 'mt-optim'"
	exits 69 mt-step "$RUN" $(with "$STEP" --wait 0.2) <"$CASE/data.bin" >"$T/m" 2>"$T/err"
	grep -q "no mt-tier came" "$T/err"
}

@test "mt-step waits --wait seconds for a dead stage, names it and exits 69" {
	ready
	eventually sh -c "mt-store stat $RUN | grep -q 'mt-optim'"
	kill -9 "$OPTIM"
	mkfifo "$T/fifo"
	(sleep 0.5; cat "$CASE/data.bin"; sleep 3) >"$T/fifo" 3>&- &
	exits 69 mt-step "$RUN" $(with "$STEP" --wait 1) <"$T/fifo" >"$T/m" 2>"$T/err"
	grep -q "mt-optim is dead" "$T/err"
}

@test "--ckpt-every without a saver exits 69 before the first step" {
	ready
	exits 69 mt-step "$RUN" $(with "$STEP" --wait 0.3 --ckpt-every 5) <"$CASE/data.bin" >"$T/m" 2>"$T/err"
	[ ! -s "$T/m" ]
	grep -q "mt-ckpt" "$T/err"
}

@test "--ckpt-every saves checkpoints at every N-th step and at the last" {
	ready
	spawn ckpt mt-ckpt serve "$RUN" --dir "$T/out" --keep 9
	mkdir -p "$T/out"
	mt-step "$RUN" $STEP --ckpt-every 5 <"$CASE/data.bin" >/dev/null
	[ "$(ls "$T/out" | tr '\n' ' ')" = "step-00000005 step-00000010 step-00000012 " ]
}

@test "a failed save exits 74 once, even if the mt-step that saw it was killed" {
	long_data
	OPTS="--steps 5000 --batch 4 --seq 32 --lr 1e-3"
	ready
	spawn small bash -c "ulimit -f 8; exec mt-ckpt serve $RUN --dir $T/out"
	mt-step "$RUN" $OPTS --ckpt-every 3 <"$T/data" >"$T/m" 2>"$T/err" 3>&- &
	step=$!
	eventually grep -q "the save of step 3 failed" "$T/err"
	kill -9 $step
	wait $step || true
	kill "$PID"                     # it finishes the current save first
	wait "$PID"
	spawn large mt-ckpt serve "$RUN" --dir "$T/out"
	until=$(($(mt-store ls "$RUN" --json | sed 's/.*"step":\([0-9]*\).*/\1/') + 5))
	exits 74 mt-step "$RUN" $OPTS --ckpt-every 5000 --until $until <"$T/data" >"$T/m" 2>"$T/err"
	grep -q "the save of step .* failed" "$T/err"
	mt-step "$RUN" $OPTS --until $((until + 1)) <"$T/data" >"$T/m"
}

@test "SIGTERM: mt-step finishes the step, saves a checkpoint and ends by the signal" {
	long_data
	ready
	mkdir -p "$T/out"
	spawn ckpt mt-ckpt serve "$RUN" --dir "$T/out"
	eventually sh -c "mt-store stat $RUN | grep -q mt-ckpt"
	mt-step "$RUN" --steps 5000 --batch 4 --seq 32 --lr 1e-3 <"$T/data" >"$T/m" 2>"$T/step.err" 3>&- &
	pid=$!
	eventually grep -q '"step": 3' "$T/m"
	kill -STOP "$STREAM"                # a step is open, not just committed, when the signal comes
	is_open() { mt-store stat "$RUN" --json | grep -q '"phase":"accumulate"'; }
	eventually is_open
	sleep 0.2                           # one whose gradients had all been sent is committed by now
	eventually is_open
	kill -TERM $pid
	kill -CONT "$STREAM"
	exits 143 wait $pid
	[ -d "$T/out/step-$(printf %08d "$(tail -1 "$T/m" | steps)")" ]
}

# bats test_tags=slow
@test "two signals within a second are one request; a later one ends mt-step at once" {
	long_data
	for late in '' 1.1; do
		ready
		mt-step "$RUN" --steps 5000 --batch 4 --seq 32 --lr 1e-3 --wait 60 <"$T/data" >"$T/m" 2>"$T/err" 3>&- &
		pid=$!
		eventually grep -q '"step": 3' "$T/m"
		kill -STOP "$STREAM"
		sleep 0.5                       # a step whose gradients were all sent can end; the next one cannot
		eventually sh -c "mt-store stat $RUN | grep -q 'accumulate, train'"
		for i in 1 2 3; do kill -TERM $pid; done
		if [ -n "$late" ]; then
			sleep $late
			kill -TERM $pid
		else
			kill -CONT "$STREAM"
		fi
		exits 143 wait $pid
		kill -CONT "$STREAM"
		slot=$(mt-store stat "$RUN" --json)
		if [ -n "$late" ]; then [[ $slot == *'"mt-step"'* ]]        # it abandoned nothing
		else [[ $slot != *'"mt-step"'* && $slot == *"\"step\":$(tail -1 "$T/m" | steps),"* ]]; fi
		RUN=$(mt_run_name b)
	done
}

@test "SIGTERM to mt-step and all stages at once: the step is finished and saved, the stages exit 0" {
	long_data
	make_run "$CASE/model" --dtype fp32
	cat >"$T/all" <<-EOF2
		await() { wait \$1; a=\$?; wait \$1; b=\$?; [ \$b != 127 ] || b=\$a; return \$b; }
		for stage in "mt-stream $RUN --device cpu --threads 1" "mt-optim $RUN --threads 1" \
			"mt-ckpt serve $RUN --dir $T/out"; do
			(trap : TERM; \$stage & await \$!; echo "\$? \$stage" >>"$T/ends") &
		done
		trap : TERM
		mt-step "$RUN" --steps 50000 --batch 4 --seq 32 --lr 1e-3 --wait 60 <"$T/data" >"$T/m" 2>"$T/err" &
		await \$!
		echo \$? >"$T/rc"
	EOF2
	setsid sh "$T/all" 3>&- &
	pid=$!
	eventually grep -q '"step": 3' "$T/m"
	eventually sh -c "mt-store stat $RUN | grep -q mt-ckpt"
	kill -TERM -- -$pid
	eventually [ -s "$T/rc" ]
	[ "$(cat "$T/rc")" = 143 ]
	eventually sh -c "[ \$(grep -c '^0 ' $T/ends) = 3 ]"
	grep -qE "no checkpoint of step|is not finished" "$T/err" ||
		[ -d "$T/out/step-$(printf %08d "$(tail -1 "$T/m" | steps)")" ]
}

@test "a closed stdout is reported once, and training continues" {
	ready
	mt-step "$RUN" $STEP <"$CASE/data.bin" 2>"$T/err" | true
	[ "${PIPESTATUS[0]}" = 0 ]
	mt-store stat "$RUN" --json | grep -q '"step":12'
	[ "$(grep -c stdout "$T/err")" -le 1 ]
}

@test "--metrics FILE has each step once, even if steps are trained again or mt-step is killed" {
	ready
	mt-step "$RUN" $STEP --metrics "$T/f" --until 6 <"$CASE/data.bin" >"$T/m" 3>&-
	cmp "$T/f" "$T/m"
	sed 's/"step": /&10/' "$T/m" | head -3 >>"$T/f"     # a lost training's steps 101 to 103, the last one cut short
	truncate -s -5 "$T/f"
	mt-step "$RUN" $STEP --metrics "$T/f" <"$CASE/data.bin" >>"$T/m" 3>&-
	cmp "$T/f" "$T/m"
	fails_with 74 mt-step "$RUN" $STEP --metrics "$T/nowhere/f"
	fails_with 74 mt-step "$RUN" $STEP --metrics "$T"
}

@test "--own-metrics: links and FIFOs exit 73, another user's file 77, and this user's is written" {
	ready
	echo precious >"$T/victim"
	ln -s "$T/victim" "$T/link"
	mkfifo "$T/fifo"
	fails_with 64 mt-step "$RUN" $STEP --own-metrics
	fails_with 73 mt-step "$RUN" $STEP --own-metrics --metrics "$T/link"
	fails_with 73 timeout 20 mt-step "$RUN" $STEP --own-metrics --metrics "$T/fifo"
	fails_with 73 mt-step "$RUN" $STEP --own-metrics --metrics /dev/null
	if [ "$(id -u)" = 0 ]; then
		chown 12345 "$T/victim"
		fails_with 77 mt-step "$RUN" $STEP --own-metrics --metrics "$T/victim"
	fi
	[ "$(cat "$T/victim")" = precious ]
	mt-step "$RUN" $STEP --own-metrics --metrics "$T/f" <"$CASE/data.bin" >"$T/m" 3>&-
	cmp "$T/f" "$T/m"
}

@test "--metrics FILE on a full disk: reported once, and its lines are written when there is room again" {
	mkdir "$T/disk"
	mount -t tmpfs -o size=64k tmpfs "$T/disk" 2>/dev/null || skip "needs the right to mount a small disk"
	head -c 1M /dev/zero 2>/dev/null >"$T/disk/full" || true
	ready
	{ cat "$CASE/data.bin"; eventually [ -e "$T/room" ]; cat "$CASE/data.bin"; } |
		mt-step "$RUN" $(with "$STEP" --steps 60) --metrics "$T/disk/f" >"$T/m" 2>"$T/err" 3>&- &
	eventually grep -q '"step": 20' "$T/m"
	[ ! -s "$T/disk/f" ]
	rm "$T/disk/full"
	: >"$T/room"
	wait $!
	cmp "$T/disk/f" "$T/m"
	[ "$(grep -c "$T/disk/f: No space left on device: no more metrics there until" "$T/err")" = 1 ]
}

@test "--warmup P% is that percentage of --steps, rounded up" {
	ready
	local step=1 steps percent warmup
	while read -r steps percent warmup; do
		step=$((step + 1))
		mt-step "$RUN" $(with "$STEP" --steps "$steps") --warmup "$percent" --until $step --input new \
			<"$CASE/data.bin" >"$T/m" 2>>"$T/step.err"
		tail -n 1 "$T/m" | python3 -c 'import json, sys
step, steps, warmup = map(int, sys.argv[1:])
want = 1e-3 * ((step - 1) / warmup if warmup else (steps - step + 1) / steps)
assert abs(json.load(sys.stdin)["lr"] - want) < 1e-9 * want, (sys.argv, want)' $step "$steps" "$warmup"
	done <<-'EOF'
		200 10% 20
		201 10% 21
		100 7% 7
		1000 2.5% 25
		9 100% 9
		9 0% 0
	EOF
	for percent in 101% -1% % 10%% x; do
		fails_with 64 mt-step "$RUN" $STEP --warmup "$percent"
	done
	fails_with 64 mt-step "$RUN" $STEP --warmup 0.1
	grep -q "'0.1' is a fraction; write a percentage of --steps as 10%" "$T/fails.err"
}

@test "invalid options exit 64 with one line before training" {
	ready
	fails_with 64 mt-step "$RUN" --steps 5 --batch 4 --seq 32
	fails_with 64 mt-step "$RUN" --batch 4 --seq 32 --lr 1
	fails_with 64 mt-step "$RUN" $STEP --until 13
	fails_with 64 mt-step "$RUN" $STEP --until 0
	fails_with 64 mt-step "$RUN" $(with "$STEP" --micro 5)
	fails_with 64 mt-step "$RUN" $STEP --schedule square
	fails_with 64 mt-step "$RUN" $STEP --schedule wsd
	fails_with 64 mt-step "$RUN" $STEP --min-lr 1e-4
	fails_with 64 mt-step "$RUN" $STEP --eval "$CASE/eval.bin"
	fails_with 64 mt-step "$RUN" $STEP --stop-after 2
	fails_with 64 mt-step "$RUN" $STEP --eval "$CASE/eval.bin" --eval-every 1 --stop-after 0
	fails_with 64 mt-step "$RUN" $STEP --beta1 1
	fails_with 64 mt-step "$RUN" $STEP --input old
	fails_with 64 mt-step "$RUN" $(with "$STEP" --batch 40000 --micro 40000)
	grep -q -- "--step-tokens" "$T/fails.err"
}

@test "--check --config checks what needs no run: the model, its positions, --eval's records, the run's name" {
	local how="--steps 9 --batch 2 --lr 1e-3 --check --config"
	[ -z "$(mt-step demo $how "$CASE/model" --seq 32 2>&1)" ]
	mt-step demo $how "$CASE/model" --seq 257 2>"$T/err"
	[ "$(cat "$T/err")" = "mt-step: --seq 257 is above the model's max_position_embeddings 256" ]
	printf '\001\0\0\0\005\0\0\0\002\0\0\0\005\0\0\0\006\0\0\200' >"$T/nothing"
	printf '\003\0\0\0\005\0\0\0\006\0\0\0\145\0\0\0' >"$T/bad"
	bad() { fails_with 65 mt-step demo $how "$CASE/model" --seq "${SEQ:-8}" --eval-every 1 --eval "$@"; }
	bad "$T/nothing" --long truncate
	grep -qx "mt-step: $T/nothing: has nothing to predict: with --seq 8 .* truncate, every token of its 1 row is .*" \
		"$T/fails.err"
	bad "$T/bad"
	grep -q "bad: record 1, element 2: token 101 is outside the vocabulary of 101" "$T/fails.err"
	SEQ=2 bad "$CASE/eval.bin" --long drop
	grep -q "every document is longer than --seq 2, and --long drop drops them" "$T/fails.err"
	fails_with 64 mt-step a/b $how "$CASE/model" --seq 8
	grep -q "run name 'a/b'" "$T/fails.err"
	fails_with 66 mt-step demo $how "$T" --seq 8
	sed 's/"model_type": "[^"]*"/"model_type": "bert"/' "$CASE/model/config.json" >"$T/config.json"
	fails_with 78 mt-step demo $how "$T" --seq 8
	sed 's/^{/{"residual_dropout": 0.1,/' "$GOLDEN/seed-oss/model/config.json" |
		sed '2,$s/"residual_dropout".*//' >"$T/config.json"
	mt-step demo $how "$T" --seq 8 2>"$T/err"
	grep -qx "mt-step: warning: config.json asks for dropout, which mt does not do: training is as .*" "$T/err"
}

@test "a checkpoint that goes on with another schedule: one line says from which learning rate to which" {
	ready
	mt-step "$RUN" --steps 4 --batch 4 --seq 32 --lr 1e-3 --schedule linear <"$CASE/data.bin" >"$T/m" 2>"$T/err"
	mt-ckpt save "$RUN" "$T/ck"
	mt-store rm "$RUN" --force
	make_run "$T/ck" --dtype fp32
	start_stages
	mt-ckpt save "$RUN" "$T/again"
	python3 -c 'import json, sys
a, b = (json.load(open(f + "/run.json"))["hyperparameters"] for f in sys.argv[1:])
assert a == b and a["targets"] > 0, (a, b)' "$T/ck" "$T/again"
	go_on() { mt-step "$RUN" "$@" --batch 4 --seq 32 <"$CASE/data.bin" >"$T/m" 2>"$T/err"; }
	go_on --steps 8 --until 5 --lr 1e-3
	grep -q "^mt-step: the learning rate goes from 0.00025 at step 4 to 0.0005 at step 5: --steps (8), " "$T/err"
	go_on --steps 8 --until 6 --lr 1e-3
	no grep "learning rate" "$T/err"
	mt-ckpt save "$RUN" "$T/six"
	mt-store rm "$RUN" --force
	make_run "$T/six" --dtype fp32
	start_stages
	go_on --steps 8 --until 7 --lr 1e-3
	no grep "learning rate" "$T/err"
}

@test "--grad none requires one micro-batch a step and no clipping" {
	make_run "$CASE/model" --grad none
	start_stages
	fails_with 64 mt-step "$RUN" $STEP
	fails_with 64 mt-step "$RUN" $(with "$STEP" --micro 4 --clip 1)
	mt-step "$RUN" $(with "$STEP" --micro 4) <"$CASE/data.bin" >"$T/m"
	[ "$(wc -l <"$T/m")" = 12 ]
}

# bats test_tags=slow
@test "a second mt-step on the same run exits 75" {
	ready
	(sleep 5) | mt-step "$RUN" $STEP >/dev/null 2>&1 3>&- &
	echo $! >>"$T/pids"
	eventually sh -c "mt-store stat $RUN | grep -q 'mt-step'"
	fails_with 75 mt-step "$RUN" $STEP
}

@test "dynamic rope with rows beyond max_position_embeddings exits 78" {
	python3 - "$GOLDEN/llama2/model/config.json" >"$T/config.json" <<-'EOF2'
		import json, sys
		c = json.load(open(sys.argv[1]))
		c.update(max_position_embeddings=64, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
		c.pop("rope_parameters", None)
		print(json.dumps(c))
	EOF2
	mt-store create "$RUN" --config "$T/config.json" 2>/dev/null
	mt-store init "$RUN" --seed 1 2>/dev/null
	fails_with 78 mt-step "$RUN" --steps 1 --batch 1 --seq 65 --lr 1e-3
	grep -q dynamic "$T/fails.err"
}

@test "rows longer than learned positions exit 78, before a step and in --check; documents are cut at --seq" {
	make_run "$GOLDEN/gpt2/model"
	start_stages
	fails_with 78 mt-step "$RUN" --steps 1 --batch 1 --seq 65 --lr 1e-3 <"$GOLDEN/gpt2/data.bin"
	grep -qx "mt-step: --seq 65 is above 64 tokens: the model has learned no more positions" "$T/fails.err"
	fails_with 78 mt-step demo --steps 1 --batch 1 --seq 65 --lr 1e-3 --check --config "$GOLDEN/gpt2/model"
	grep -q "the model has learned no more positions" "$T/fails.err"
	python3 -c 'import struct, sys; sys.stdout.buffer.write(struct.pack("<I150I", 150, *range(1, 101), *range(50)))' |
		mt-step "$RUN" --steps 1 --batch 3 --seq 64 --lr 1e-3 >"$T/m" 2>"$T/err"
	grep -q '"tokens": 149' "$T/m"
	no grep positions "$T/err"
}

@test "mt-step(1) lists the key of every number of a step" {
	sed -n 's/^\tF(x, [^"]*, "\([a-z_]*\)".*/\1/p' "$TOP/shm/mt/figures.h" >"$T/keys"
	[ "$(wc -l <"$T/keys")" -ge 8 ]
	while read -r key; do grep -q "^\.Li.*\<$key\>" "$TOP/mt-step/mt-step.1"; done <"$T/keys"
}
