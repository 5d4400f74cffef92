# Messages that a user needs: data that ends early, skipped steps, mistyped options, stopped stages, input of another
# format.
load helpers

CASE=$GOLDEN/llama3
STEP="--steps 12 --batch 4 --micro 2 --seq 32 --lr 1e-3 --wait 5"

at_step() { mt-store ls "$RUN" --json | sed 's/.*"step":\([0-9]*\).*/\1/'; }
# The program must exit with CODE: ends CODE PROGRAM ARGS... (its stdin is ours; stderr goes to $T/err, stdout to $T/m)
ends() {
	local want=$1 code=0
	shift
	"$@" >"$T/m" 2>"$T/err" 3>&- || code=$?
	[ "$code" = "$want" ] || { echo "$* -> $code, wanted $want"; cat "$T/err"; return 1; }
}

# ---- schedules and skipped steps

@test "input that ends before --steps prints one line with both steps, learning rate and remedy, and exits 0" {
	ready
	documents 40 32 >"$T/data"
	ends 0 mt-step "$RUN" --steps 500 --batch 8 --seq 32 --lr 1e-3 --warmup 10 <"$T/data"
	[ "$(steps <"$T/m")" = "1 2 3 4 5" ]
	[ "$(wc -l <"$T/err")" = 1 ]
	remedy="use --steps 5, or feed more data (mt-feed --epochs 100)"
	grep -q "input ended at step 5 of 500: the schedule is incomplete (lr is 0.0004): $remedy" "$T/err"
	# a shorter last step, also when a checkpoint makes mt-step read ahead
	documents 42 32 >"$T/data"
	mt-ckpt load "$RUN" "$CASE/model" 2>"$T/load.err" || true
	ends 0 mt-step "$RUN" --steps 500 --batch 8 --seq 32 --lr 1e-3 <"$T/data"
	[ "$(wc -l <"$T/err")" = 1 ]
	grep -q "input ended at step 6 of 500, which has 2 of 8 rows: .*use --steps 6" "$T/err"
}

@test "the epochs that an early end suggests are those of the rows, and unknown after a restart" {
	ready
	documents 42 32 >"$T/data"
	ends 0 mt-step "$RUN" --steps 53 --batch 8 --seq 32 --lr 1e-3 --until 2 <"$T/data"
	[ ! -s "$T/err" ]
	ends 0 mt-step "$RUN" --steps 53 --batch 8 --seq 32 --lr 1e-3 <"$T/data"
	grep -q "input ended at step 6 of 53.* feed more data (mt-feed --epochs N)" "$T/err"
	# of the 47 steps that are left, the new input is enough for 5 and a quarter: 8.95 times
	ends 0 mt-step "$RUN" --steps 53 --batch 8 --seq 32 --lr 1e-3 --input new <"$T/data"
	grep -q "input ended at step 12 of 53.* feed more data (mt-feed --epochs 9)" "$T/err"
}

@test "an early end does not call a schedule incomplete that is constant or that --until stops" {
	ready
	documents 42 32 >"$T/data"
	ends 0 mt-step "$RUN" --steps 500 --until 6 --batch 8 --seq 32 --lr 1e-3 <"$T/data"
	[ "$(cat "$T/err")" = "mt-step: input ended at step 6 of 500, which has 2 of 8 rows" ]
	local how="--steps 500 --batch 8 --seq 32 --lr 1e-3 --schedule constant --input new"
	ends 0 mt-step "$RUN" $how <"$T/data"
	grep -q "input ended at step 12 of 500, which has 2 of 8 rows: use --steps 12, or feed more data" "$T/err"
	ends 0 mt-step "$RUN" $how --warmup 20 <"$T/data"
	grep -q "rows: the schedule is incomplete (lr is 0.00085): use --steps 18" "$T/err"
}

@test "input that ends early is reported even if saving makes mt-step read ahead" {
	ready
	spawn ckpt mt-ckpt serve "$RUN" --dir "$T/out"
	documents 40 32 >"$T/data"
	ends 0 mt-step "$RUN" --steps 500 --batch 8 --seq 32 --lr 1e-3 --ckpt-every 100 <"$T/data"
	[ "$(grep -c "input ended at step 5 of 500" "$T/err")" = 1 ]
	[ -d "$T/out/step-00000005" ]
}

@test "the first skipped step is reported once, with its reason" {
	ready
	{ documents 1 32; documents 2 32 mask; documents 1 32; } >"$T/data"
	ends 0 mt-step "$RUN" --steps 4 --batch 1 --seq 32 --lr 1e-3 <"$T/data"
	[ "$(grep -c '"skipped": true' "$T/m")" = 2 ]
	[ "$(wc -l <"$T/err")" = 1 ]
	grep -q "step 2 is skipped: it has no target: every token is context only; no weight is changed" "$T/err"
}

@test "consecutive skipped steps end mt-step with 65 after --max-skipped, or after 20 without it" {
	documents 60 32 >"$T/data"
	for n in 3 20; do
		RUN=$(mt_run_name $n)
		ready
		how=''
		[ $n = 20 ] || how="--max-skipped $n"
		ends 65 mt-step "$RUN" --steps 60 --batch 1 --seq 32 --lr 1e30 $how <"$T/data"
		[ "$(grep -c '"skipped": true' "$T/m")" = $n ]
		[ "$(wc -l <"$T/err")" = 2 ]
		grep -q "is skipped: the loss is not finite" "$T/err"
		grep -q "training stops (--max-skipped): the last $n of .* steps were skipped: the loss is not finite" "$T/err"
		[ "$(at_step)" = "$(tail -1 "$T/m" | steps)" ]
	done
	# 0: no limit; training continues, and at the end mt-step reports that all steps were skipped
	ends 0 mt-step "$RUN" --steps 60 --batch 1 --seq 32 --lr 1e30 --max-skipped 0 <"$T/data"
	[ "$(at_step)" = 60 ]
}

@test "skipped steps with a few trained steps between them are not consecutive" {
	ready
	for i in 1 2 3 4; do documents 2 32 mask; documents 1 32; done >"$T/data"
	ends 0 mt-step "$RUN" --steps 12 --batch 1 --seq 32 --lr 1e-3 --max-skipped 3 <"$T/data"
	[ "$(grep -c '"skipped": true' "$T/m")" = 8 ]
}

@test "a short run whose steps are all skipped to the end exits 65" {
	ready
	documents 6 32 >"$T/data"
	ends 65 mt-step "$RUN" --steps 6 --batch 1 --seq 32 --lr 1e30 <"$T/data"
	grep -q "the last [45] of 6 steps were skipped" "$T/err"
}

@test "data whose tokens are all masked exits 65, also when run again, and mt-run exports nothing" {
	ready
	documents 5 32 mask >"$T/data"
	for again in 1 2; do
		ends 65 mt-step "$RUN" --steps 5 --batch 1 --seq 32 --lr 1e-3 --max-skipped 0 <"$T/data"
		grep -q "nothing was trained: all 5 steps of the run were skipped" "$T/err"
	done
	ends 65 mt-run --run "$(mt_run_name b)" --model "$CASE/model" --data "$T/data" --out "$T/out" --steps 5 --batch 1 \
		--seq 32 \
		--lr 1e-3 --threads 1
	[ ! -e "$T/out/model" ]
	grep -q "nothing was trained" "$T/err"
}

# ---- waiting

# bats test_tags=slow
@test "a stage that waits for a missing run reports after 2 seconds that it is missing, and lists existing runs" {
	mkdir "$T/shm"
	export MT_SHM_DIR=$T/shm            # eight runs are listed, and other tests have some
	make_run "$CASE/model"
	for program in "mt-optim" "mt-stream --device cpu" "mt-ckpt serve --dir $T/out"; do
		spawn "${program%% *}" $program "${RUN}o"
	done
	spawn step sh -c "exec mt-step ${RUN}o $STEP </dev/null"
	mt-store create "${RUN}e" --config "$CONFIGS/demo.json" --step-tokens 1K 2>/dev/null
	spawn empty mt-optim "${RUN}e"
	for name in mt-optim mt-stream mt-ckpt step; do
		eventually grep -q "waits for run '${RUN}o': it does not exist; existing runs: .*$RUN" "$T/$name.err"
		[ "$(grep -c "waits for run" "$T/$name.err")" = 1 ]
	done
	eventually grep -q "waits for run '${RUN}e': it has no weights: mt-store init or mt-ckpt load" "$T/empty.err"
}

# bats test_tags=slow
@test "a waiting stage names a stopped stage after 10 seconds, and SIGTERM ends a waiting mt-step" {
	long_data
	ready
	spawn step sh -c "exec mt-step $RUN $(with "$STEP" --steps 50000) <$T/data"
	step=$PID
	eventually grep -q '"step": 3,' "$T/step.out"
	kill -STOP "$OPTIM"
	for i in $(seq 70); do grep -q "waits for" "$T/step.err" && break; sleep 0.2; done
	grep -q "waits for mt-optim (pid $OPTIM), which is stopped (SIGSTOP): kill -CONT $OPTIM" "$T/step.err"
	kill -TERM "$step"
	eventually grep -q "is not finished" "$T/step.err"
	exits 143 wait "$step"
	grep -q "step .* is not finished: mt-optim (pid $OPTIM) is stopped (SIGSTOP): kill -CONT $OPTIM" "$T/step.err"
	kill -CONT "$OPTIM"
	last=$(tail -1 "$T/step.out" | steps)
	# the same command continues where the last one ended
	ends 0 mt-step "$RUN" $(with "$STEP" --steps 50000 --until $((last + 4))) <"$T/data"
	[ "$(tail -1 "$T/m" | steps)" = $((last + 4)) ]
	[ "$(head -1 "$T/m" | steps)" -le $((last + 1)) ]
}

# bats test_tags=slow
@test "SIGTERM ends an mt-step that waits for the save of a stopped mt-ckpt" {
	ready
	spawn ckpt mt-ckpt serve "$RUN" --dir "$T/out"
	ckpt=$PID
	eventually sh -c "mt-store ls $RUN | grep -q mt-ckpt"
	kill -STOP "$ckpt"
	spawn step sh -c "exec mt-step $RUN --steps 4 --batch 4 --seq 32 --lr 1e-3 --ckpt-every 4 <$CASE/data.bin"
	step=$PID
	eventually grep -q '"step": 4,' "$T/step.out"
	kill -TERM "$step"
	eventually grep -q "mt-ckpt (pid $ckpt) is stopped (SIGSTOP): the save of step 4 was not finished" "$T/step.err"
	exits 143 wait "$step"
	kill -CONT "$ckpt"
	eventually [ -d "$T/out/step-00000004" ]
}

# ---- options and input

@test "a single-value option given twice exits 64; an option that takes a list can be repeated" {
	fails_with 64 mt-step "$RUN" $STEP --seq 16
	grep -q -- "--seq is given twice" "$T/fails.err"
	fails_with 64 mt-store create "$RUN" --config a --dtype bf16 --config=b
	fails_with 64 mt-feed --epochs 2 --epochs 2 "$CASE/data.bin"
	fails_with 64 mt-optim "$RUN" --threads 1 --threads 2
	fails_with 66 mt-step "$RUN" $(with "$STEP" --wait 0) --ring batch.0=a --ring batch.1=b
}

@test "unknown options name the nearest option, and fractions are refused with an explanation" {
	fails_with 64 mt-step "$RUN" --batch-size 2
	grep -q "unknown option --batch-size: did you mean --batch?" "$T/fails.err"
	fails_with 64 mt-step "$RUN" --warmpu 2
	grep -q "unknown option --warmpu: did you mean --warmup?" "$T/fails.err"
	fails_with 64 mt-step "$RUN" --zzzzzz 2
	no grep -q "did you mean" "$T/fails.err"
	fails_with 64 mt-step "$RUN" --warmup 0.1
	grep -q -- "--warmup STEPS wants a whole number: '0.1' is a fraction" "$T/fails.err"
}

@test "JSONL, gzip and text instead of records exit 65 and are recognized, by mt-step and mt-feed" {
	ready
	cp "$CASE/data.bin" "$T/data"
	gzip -nc "$T/data" >"$T/nameless"
	gzip -c "$T/data" >"$T/named"
	printf '{"a":1}\n' >"$T/jsonl"
	printf '[\n{"messages": []}]\n' >"$T/json"
	printf 'In the beginning God created\n' >"$T/text"
	for what in "jsonl starts with '{' (JSONL?): convert it to records with mt-tokens" \
		"json starts with '\[' (JSONL?)" \
		"text starts with 'In t' (text?)" "named is compressed by gzip: decompress it first (zcat" \
		"nameless is compressed by gzip: decompress it first (zcat"; do
		file=$T/${what%% *} words=${what#* }
		ends 65 mt-step "$RUN" $STEP <"$file"
		[ "$(cat "$T/err" | wc -l)" = 1 ]
		grep -q "stdin $words" "$T/err"
		ends 65 mt-feed "$file"
		grep -q "$file $words" "$T/err"
		[ ! -s "$T/m" ]
		ends 65 mt-feed - <"$file"
		grep -q "stdin $words" "$T/err"
	done
	# data that only looks like gzip is accepted: 559,903 tokens, and a first token of any 32 bits
	python3 -c 'import struct, sys; sys.stdout.buffer.write(struct.pack("<3I", 0x88b1f, 7, 7) + bytes(4 * 559901))' \
		>"$T/long"
	mt-feed "$T/long" | cmp - "$T/long"
}

# bats test_tags=slow
@test "documents longer than --seq are counted in one line, at the end or after 1000 of them" {
	ready
	{ documents 3 20; documents 5 70; } >"$T/data"
	ends 0 mt-step "$RUN" --steps 4 --batch 5 --seq 32 --lr 1e-3 <"$T/data"
	grep -q "^mt-step: 62 % of documents (5 of 8) are longer than --seq 32 and are cut$" "$T/err"
	{ documents 500 20; documents 700 40; } >"$T/data"
	ends 0 mt-step "$RUN" --steps 300 --batch 8 --seq 32 --lr 1e-3 --input new <"$T/data"
	[ "$(grep -c "are cut" "$T/err")" = 1 ]
	RUN=$(mt_run_name b)
	ready
	ends 0 mt-step "$RUN" --steps 3 --batch 4 --seq 32 --lr 1e-3 --pack concat <"$T/data"
	[ ! -s "$T/err" ]
}

# bats test_tags=slow
@test "a model's directory or name that is missing gets the message that mt does not download, and what to run" {
	local name
	names() { # PATH WHAT: hf download's words
		for program in "mt-store create $RUN --config" "mt-plan --seq 32 --micro 1 --config" "mt-tokens" \
			"mt-run --data $CASE/data.bin --out $T/out --batch 1 --seq 32 --steps 1 --lr 1 --model" \
			"mt-run --score --data $CASE/data.bin --seq 32 --model"; do
			fails_with 66 $program "$1"
			grep -Eq "mt does not download: '?hf download $2'?( does)?$" "$T/fails.err" || return
		done
	}
	names Qwen/Qwen2.5-0.5B "Qwen/Qwen2.5-0.5B --local-dir DIR"
	for name in "$T/models/Qwen2.5-0.5B" ./nowhere a/b/c; do names "$name" "ORG/NAME --local-dir $name"; done
	for name in "$T/nowhere.json" "$T/config.json"; do
		fails_with 66 mt-store create "$RUN" --config "$name"
		no grep -q download "$T/fails.err"
		fails_with 66 mt-run --data "$CASE/data.bin" --out "$T/out" --batch 1 --seq 32 --steps 1 --lr 1 --model "$name"
		grep -qx "mt-run: $name: no such file" "$T/fails.err"
	done
}

# ---- file descriptors and terminals

@test "mt-step with a closed stdout trains, reports once that no metrics are written, and exits 0" {
	ready
	exits 0 mt-step "$RUN" $STEP <"$CASE/data.bin" 2>"$T/err" >&- 3>&-
	[ "$(at_step)" = 12 ]
	[ "$(grep -c stdout "$T/err")" = 1 ]
	grep -q "stdout: .*: no more metrics, training goes on" "$T/err"
}

@test "programs started with fd 0, 1 and 2 closed open no file under those numbers" {
	make_run "$CASE/model"
	fds() { for fd in 0 1 2; do readlink "/proc/$PID/fd/$fd"; done | sort -u; }
	for program in "mt-store serve" mt-optim "mt-stream --device cpu" "mt-ckpt serve --dir $T/out"; do
		sh -c "exec $program $RUN <&- >&- 2>&-" 3>&- &
		PID=$!
		echo "$PID" >>"$T/pids"
		slot=${program%% *}
		eventually sh -c "mt-store ls $RUN | grep -q $slot"
		[ "$(fds)" = /dev/null ]
	done
	[ "$(mt-store ls "$RUN" | grep -c "mt-store, mt-optim, mt-ckpt, mt-stream")" = 1 ]
	# none of their messages went into a region
	(mt-step "$RUN" $STEP <"$CASE/data.bin" 2>&- >&-) 3>&-
	[ "$(at_step)" = 12 ]
	mt-ckpt save "$RUN" "$T/saved" 0<&- 1>&- 2>&- 3>&-
	mt-ckpt verify "$T/saved"
	exits 74 mt-feed "$CASE/data.bin" >&- 2>"$T/err"
}

@test "control characters in messages reach the terminal as question marks" {
	fails_with 64 mt-step "$RUN" "$(printf 'a\302\2331m\2331m\033[1m\300\233\355\240\200\n\177')"
	printf 'mt-step: unexpected operand '"'"'a??1m?1m?[1m???????'"'"'; see --help\n' | cmp - "$T/fails.err"
	fails_with 64 mt-step "$RUN" "naïve — 東京 🙂"
	grep -q "naïve — 東京 🙂" "$T/fails.err"
}

# ---- installation
