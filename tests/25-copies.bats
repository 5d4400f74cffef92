# Checkpoints and exports are complete and hold one consistent state: while steps and fills run, when memory,
# descriptors or the disk run out, when they are replaced, and when a copy of a checkpoint is incomplete.
load helpers

CASE=$GOLDEN/llama3
ST() { python3 "$TOP/tests/lib/mksafetensors.py" "$@"; }
create() { mt-store create "$@" 2>"$T/create.err"; }
no_leftovers() { [ -z "$(find "$T" -name '*mt-tmp*')" ]; }
strace_works() { strace -o /dev/null true 2>/dev/null || skip "needs strace"; }

two_runs() {
	OTHER=$(mt_run_name b)
	create "$RUN" --config "$GOLDEN/llama2/model" "$@"
	create "$OTHER" --config "$GOLDEN/llama2/model" "$@"
}

# ---- while steps and
# fills run

# bats test_tags=slow
@test "save and export copy one consistent state or exit 75, whatever steps and fills do between their system calls" {
	two_runs
	run ckpt-race "$RUN" "$OTHER" "$T" 1 300
	echo "$output"
	[ "$status" = 0 ]
	[ "${output%% *}" -ge 30 ]              # if all were busy, the test would show nothing
	no_leftovers
}

# bats test_tags=slow
@test "int8 state: save and export copy one consistent state or exit 75, whatever steps and fills do meanwhile" {
	two_runs --state int8
	run ckpt-race "$RUN" "$OTHER" "$T" 2 150
	echo "$output"
	[ "$status" = 0 ]
	[ "${output%% *}" -ge 15 ]
	no_leftovers
}

# bats test_tags=slow
@test "save and export in a loop beside short steps: each copy is the state of its step" {
	mkdir "$T/s"
	run timeout 300 python3 "$TOP/tests/lib/saves.py" "$RUN" "$T/s" "$CASE/model" --saves "${MT_SAVES:-60}" \
		--seed "$RANDOM"
	echo "$output"
	[ "$status" = 0 ]
}

# bats test_tags=slow
@test "init --seed 2 during an export: the export exits 75 and leaves no directory" {
	strace_works
	create "$RUN" --config "$CONFIGS/demo.json"
	mt-store init "$RUN" --seed 1 2>"$T/init.err"
	spawn export strace -o "$T/trace" -e trace=pwrite64 -e inject=pwrite64:delay_enter=3000000:when=4 \
		mt-ckpt export "$RUN" "$T/out" --threads 1
	eventually sh -c "[ \"\$(grep -c pwrite64 $T/trace)\" -ge 3 ]"    # it has copied some tensors
	mt-store init "$RUN" --seed 2 2>"$T/init.err"
	exits 75 wait "$PID"
	grep -q 'filled meanwhile\|is being filled' "$T/export.err"     # init may still be at work
	[ ! -e "$T/out" ]
	no_leftovers
}

# ---- what fails

# bats test_tags=slow
@test "save and export whose JSON allocation fails, once or always, fail and leave the existing files unchanged" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 1 3
	ckpt-fail "$RUN" "$T" json 401 | grep -q '^[1-9][0-9][0-9]* failed'
	no_leftovers
}

# bats test_tags=slow
@test "save and export whose fsync of any file or directory fails, once or always, leave existing files unchanged" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 1 3
	ckpt-fail "$RUN" "$T" fsync 1 | grep -q '^[1-9][0-9][0-9]* failed'
	no_leftovers
}

# bats test_tags=slow
@test "save and export that get no file descriptor, once or always, leave the existing files unchanged" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 1 3
	ckpt-fail "$RUN" "$T" open 3 | grep -q '^[1-9][0-9][0-9]* failed'
	no_leftovers
}

@test "a run.json with a count of 2^63 - 1, which cannot grow, exits 65" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-fail "$RUN" "$T" counts | grep -q '^65: run.json: tokens is not a number in range$'
}

@test "a run.json without a key that all checkpoints have exits 65 and names the key" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 1 3
	mt-ckpt save "$RUN" "$T/ck"
	cp "$T/ck/run.json" "$T"
	for key in state optim position.processed; do
		cp "$T/run.json" "$T/ck"
		ckpt-edit "$T/ck" $key
		fails_with 65 mt-ckpt verify "$T/ck"
		grep -q "run.json: ${key#*.} is n" "$T/fails.err"
	done
}

# bats test_tags=slow
@test "create makes the whole run or leaves no files when any open, fstat or mmap fails" {
	no_asan
	strace_works
	local call n total code failed=0
	for call in openat fstat,newfstatat mmap; do
		strace -o "$T/trace" -e trace=$call mt-store create "$RUN" --config "$GOLDEN/llama2/model" 2>"$T/create.err"
		mt-store rm "$RUN"
		total=$(grep -c '= [0-9]' "$T/trace")
		for n in $(seq $((total - 9)) "$total"); do
			code=0
			strace -o "$T/trace" -e inject=$call:error=ENFILE:when=$n mt-store create "$RUN" \
				--config "$GOLDEN/llama2/model" \
				>"$T/out" 2>"$T/create.err" || code=$?
			if [ "$code" = 0 ]; then
				mt-store rm "$RUN"
			else
				failed=$((failed + 1))
				gone "$RUN"
			fi
		done
	done
	[ "$failed" -ge 5 ]
}

# bats test_tags=slow
@test "a failed save is counted once, even if its saver dies before it counts it" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 3 3
	strace_works
	# slow enough that the probe gives up before the saver seals
	spawn serve strace -D -o /dev/null -e inject=fsync:delay_enter=300000 mt-ckpt serve "$RUN" --dir "$T/ck"
	[ "$(ckpt-snap "$RUN" 3 give-up 0)" = failed ]          # by a probe, which does not count it
	mt-store stat "$RUN" --json | grep -q '"failed": *1\b'
	ckpt-snap "$RUN" word | grep -q '^3 failed 0 1$'
	ckpt-snap "$RUN" word | grep -q '^3 failed 0 1$'
	end "$PID"
	ckpt-dump "$RUN" scribble 4 4                           # filled again: the count of failed saves is 0
	spawn serve mt-ckpt serve "$RUN" --dir "$T/ck"
	[ "$(ckpt-snap "$RUN" 4)" = saved ]
	ckpt-snap "$RUN" word | grep -q '^4 saved 1 0$'
}

@test "mt-store serve that runs out of file descriptors while opening the run continues" {
	need_cmd prlimit
	create "$RUN" --config "$GOLDEN/llama2/model"
	spawn serve mt-store serve "$RUN"
	eventually grep -q ready "$T/serve.out"
	prlimit --pid "$PID" --nofile=3:3
	sleep 0.5
	kill -0 "$PID"
	mt-store rm "$RUN" --force
	wait "$PID"
}

# ---- names on the disk

@test "the name of a new --dir is synced to disk, and replaced checkpoints are deleted after that" {
	strace_works
	create "$RUN" --config "$GOLDEN/llama2/model"
	mkdir -p "$T/deep"
	spawn serve strace -f -y -o "$T/trace" -e trace=fsync,mkdir,renameat,renameat2,unlinkat mt-ckpt serve "$RUN" \
		--dir "$T/deep/ck"
	eventually test -d "$T/deep/ck"
	ckpt-dump "$RUN" scribble 3 3
	[ "$(ckpt-snap "$RUN" 3)" = saved ]
	ckpt-dump "$RUN" scribble 4 3
	[ "$(ckpt-snap "$RUN" 3)" = saved ]                     # the same step a second time
	mt-store rm "$RUN" --force
	eventually sh -c "! kill -0 $PID"
	grep -q "fsync([0-9]*<$T/deep>) *= 0" "$T/trace"
	# the parent directory is synced after the exchange of names and before the first file is deleted
	awk '/RENAME_EXCHANGE/ { on = 1; next } on && /fsync/ && /deep\/ck>/ { synced = 1 }
		on && /unlinkat/ { print synced ? "after" : "before"; exit }' "$T/trace" | grep -qx after
}

@test "export --replace replaces an export, and exits 73 for any other directory and leaves it unchanged" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 1 3
	mt-ckpt export "$RUN" "$T/out" --replace
	cp -r "$T/out" "$T/first"
	fails_with 73 mt-ckpt export "$RUN" "$T/out"
	ckpt-dump "$RUN" scribble 2 4
	mt-ckpt export "$RUN" "$T/out/" --replace
	no cmp -s "$T/out/model.safetensors" "$T/first/model.safetensors"
	mt-ckpt verify "$T/out"
	ln -s first "$T/link"
	mt-ckpt export "$RUN" "$T/link" --replace               # the link is deleted, not its target
	[ ! -h "$T/link" ]
	cmp "$T/link/model.safetensors" "$T/out/model.safetensors"
	mt-ckpt verify "$T/first"
	mkdir "$T/mine"
	echo x >"$T/mine/notes"
	fails_with 73 mt-ckpt export "$RUN" "$T/mine" --replace
	[ "$(cat "$T/mine/notes")" = x ]
	fails_with 64 mt-ckpt save "$RUN" "$T/new" --replace
	no_leftovers
}

@test "export --replace killed or failing at any rename: DIR is a complete model at every moment" {
	strace_works
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 1 3
	mt-ckpt export "$RUN" "$T/out"
	for how in signal=KILL error=EIO; do
		for call in renameat renameat2; do
			ckpt-dump "$RUN" scribble $RANDOM 4
			strace -o /dev/null -e inject=$call:$how:when=1 mt-ckpt export "$RUN" "$T/out" --replace 2>/dev/null || true
			mt-ckpt verify "$T/out"
		done
	done
	# a file system that cannot exchange names (NFS): after a kill between the two renames, the next export puts the old
	# one back
	strace -o /dev/null -e inject=renameat2:error=EINVAL mt-ckpt export "$RUN" "$T/out" --replace
	mt-ckpt verify "$T/out"
	strace -o /dev/null -e inject=renameat2:error=EINVAL -e inject=renameat:signal=KILL:when=3 \
		mt-ckpt export "$RUN" "$T/out" --replace 2>/dev/null || true
	mt-ckpt export "$RUN" "$T/out" --replace
	mt-ckpt verify "$T/out"
	no_leftovers
}

# ---- half a checkpoint

@test "a checkpoint without run.json exits 65, whatever its name; load --weights loads its weights" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	ckpt-dump "$RUN" scribble 1 3
	mt-ckpt save "$RUN" "$T/step-00000003"
	rm "$T/step-00000003/run.json"
	cp -r "$T/step-00000003" "$T/copy"
	for dir in "$T/step-00000003" "$T/step-00000003/" "$T/copy"; do
		fails_with 65 mt-ckpt verify "$dir"
		grep -q 'run.json is missing' "$T/fails.err"
		fails_with 65 mt-ckpt load "$RUN" "$dir"
	done
	ckpt-dump "$RUN" | grep -q '^step 3 '
	mt-ckpt load "$RUN" "$T/copy" --weights
	ckpt-dump "$RUN" | grep -q '^step 0 t 0$'
	rm "$T"/step-00000003/optim-*
	fails_with 65 mt-ckpt verify "$T/step-00000003"
	(cd "$T/step-00000003" && fails_with 65 mt-ckpt load "$RUN" .)
	rm "$T"/copy/optim-*                                    # only a model is left
	mt-ckpt verify "$T/copy"
}

@test "mt-run --resume skips a checkpoint without run.json and reports it; if there is no other it exits 65" {
	run_it() {
		mt-run --run "$RUN" --model "$CASE/model" --data "$CASE/data.bin" --out "$T/out" --batch 4 --micro 2 --seq 32 \
			--lr 1e-3 --threads 1 --wait 3 --dtype fp32 --steps 6 --ckpt-every 3 "$@" >"$T/m" 2>"$T/run.err" 3>&-
	}
	run_it
	rm "$T/out/step-00000006/run.json"
	run_it --resume
	[ "$(steps <"$T/m")" = "4 5 6" ]
	grep -q 'step-00000006: no whole checkpoint: run.json is missing' "$T/run.err"
	mt-ckpt verify "$T/out/step-00000006"
	mt-ckpt verify "$T/out/model"
	rm "$T"/out/step-*/run.json
	exits 65 run_it --resume
}

@test "--keep does not count a directory without run.json, and does not delete it" {
	create "$RUN" --config "$GOLDEN/llama2/model"
	mkdir -p "$T/ck/step-00000002"
	echo x >"$T/ck/step-00000002/config.json"
	ckpt-dump "$RUN" scribble 1 1
	spawn serve mt-ckpt serve "$RUN" --dir "$T/ck" --keep 2
	for i in 1 3 4; do
		ckpt-dump "$RUN" advance $i $i
		[ "$(ckpt-snap "$RUN" $i)" = saved ]
	done
	eventually sh -c "[ \"\$(ls -A $T/ck | tr '\n' ' ')\" = 'step-00000002 step-00000003 step-00000004 ' ]"
}

# ---- contents

@test "config.json with text that looks like mt's own number marks is exported unchanged" {
	local list='["\u0001", "\u0001\u0001number 1", "x\"\u0001number 5", NaN, 123456789012345678901]'
	local odd='{"\u0001number 5": "\u0001number 7", "a": '"$list"', "\u0001": 1}'
	ST make "$T/in" --set "odd=$odd"
	make_run "$T/in"
	mt-ckpt export "$RUN" "$T/out"
	ST json "$T/out/config.json" '
o = j["odd"]
assert list(o) == ["\1number 5", "a", "\1"] and o["\1number 5"] == "\1number 7" and o["\1"] == 1, o
assert o["a"][:3] == ["\1", "\1\1number 1", "x\"\1number 5"], o
assert o["a"][3] != o["a"][3] and o["a"][4] == 123456789012345678901, o'
	mt-ckpt load "$RUN" "$T/out"
}

direct() { LD_PRELOAD=$PROBES/so-direct.so "$@"; }

# Direct writes so far
direct_writes() { wc -l <"$T/direct"; }

need_direct_io() {
	dd if=/dev/zero of="$T/probe" bs=4096 count=1 oflag=direct status=none 2>/dev/null ||
		skip "the file system of $T has no direct I/O"
}

@test "checkpoints and exports are written with direct I/O, and have the same bytes where it fails" {
	no_asan
	local how
	need_direct_io
	create "$RUN" --config "$TOP/bin/run/demo.json" --dtype bf16
	mt-store init "$RUN" --seed 1
	MT_DIRECT_LOG=$T/direct direct mt-ckpt save "$RUN" "$T/direct-save"
	[ "$(direct_writes)" -ge 6 ]                           # 12 bytes a parameter, 2 MiB at once
	mt-ckpt verify "$T/direct-save"
	mt-ckpt export "$RUN" "$T/direct-export" --dtype fp32
	for how in none 0 1 7; do
		MT_DIRECT=$how direct mt-ckpt save "$RUN" "$T/save"
		diff -r "$T/direct-save" "$T/save"
		MT_DIRECT=$how direct mt-ckpt export "$RUN" "$T/export" --dtype fp32
		diff -r "$T/direct-export" "$T/export"
		rm -r "$T/save" "$T/export"
	done
}

@test "an update that waits for a save does not wait for the disk: the rest is written through the page cache" {
	no_asan
	need_direct_io
	create "$RUN" --config "$TOP/bin/run/demo.json" --dtype fp32
	mt-store init "$RUN" --seed 1
	python3 -c 'import struct, sys; sys.stdout.buffer.write(struct.pack("<800I", *(7 * i % 256 for i in range(800))))' \
		>"$T/tokens"
	start_stages
	spawn serve env LD_PRELOAD="$PROBES/so-direct.so" MT_DIRECT_LOG="$T/direct" MT_DIRECT_GATE="$T/gate" \
		mt-ckpt serve "$RUN" --dir "$T/ck" --threads 1
	eventually sh -c "mt-store stat $RUN | grep -q mt-ckpt"
	# the records of two steps and most of the third, and the rest when the first save has begun
	mkfifo "$T/in"
	exec 8<>"$T/in"
	spawn step sh -c 'exec mt-step "$0" --steps 4 --batch 4 --seq 32 --pack none --lr 1e-3 --ckpt-every 2 --wait 60 \
		<"$1" 8>&-' "$RUN" "$T/in"
	mt-feed --u32 "$T/tokens" --block 32 >"$T/records"
	head -c $((132 * 11)) "$T/records" >&8
	eventually test -s "$T/direct"
	tail -c +$((132 * 11 + 1)) "$T/records" >&8 3>&- &
	echo $! >>"$T/pids"
	eventually sh -c "mt-store stat $RUN | grep -q 'waits for the snapshot to let go of unit'"
	[ "$(direct_writes)" = 1 ]                              # which is blocked
	touch "$T/gate"
	eventually test -e "$T/ck/step-00000002"
	wait "$PID"
	mt-ckpt verify "$T/ck/step-00000002"
	mt-ckpt verify "$T/ck/step-00000004"
	local both=$(direct_writes)
	: >"$T/direct"
	MT_DIRECT_LOG=$T/direct direct mt-ckpt save "$RUN" "$T/again"
	[ "$(direct_writes)" -ge 6 ]
	[ "$both" = $((1 + $(direct_writes))) ]                 # no update waited for the last save
}

@test "a checkpoint has the hyperparameters of its own step, even if the saver was late" {
	ready
	spawn serve mt-ckpt serve "$RUN" --dir "$T/ck" --keep 12
	local saver=$PID
	eventually sh -c "mt-store stat $RUN | grep -q mt-ckpt"
	kill -STOP "$saver"
	spawn step sh -c \
		'exec mt-step "$0" --steps 12 --batch 4 --micro 2 --seq 32 --lr 1e-3 --ckpt-every 2 --wait 60 <"$1"' \
		"$RUN" "$CASE/data.bin"
	# step 2 is pinned, and later steps have overwritten its record
	eventually sh -c "mt-store stat $RUN --json | grep -q '\"k\": *4'"
	eventually sh -c "mt-store stat $RUN | grep -q 'waits for the snapshot to let go of unit'"
	kill -CONT "$saver"
	wait "$PID"
	mt-store stat "$RUN" --json | grep -q '"snapshot_wait_ns": *[1-9]'      # and the update waited for it
	python3 - "$T/ck" <<-'PY'
		import json, sys
		for n in range(2, 13, 2):
		    h = json.load(open("%s/step-%08d/run.json" % (sys.argv[1], n)))["hyperparameters"]
		    assert h["micros"] == 2 and abs(h["lr"] - 1e-3 * (13 - n) / 12) < 1e-12, h
	PY
}

# Train a run that is saved at each step. Pause mt-step while the others commit and save, then kill all of them.
# Make the run again from its newest checkpoint and train it to its end: paused [more of mt-step's options]
paused() {
	local opts="--steps 12 --batch 4 --micro 2 --seq 32 --lr 1e-3 --ckpt-every 1 --wait 20 $*" p
	ready
	spawn serve mt-ckpt serve "$RUN" --dir "$T/ck"
	local saver=$PID
	eventually sh -c "mt-store stat $RUN | grep -q mt-ckpt"
	mkfifo "$T/in"
	exec 8<>"$T/in"
	spawn step sh -c "exec mt-step $RUN $opts <$T/in 8>&-"
	local step=$PID
	[ $# = 0 ] || eventually grep -q '"step": 0' "$T/step.out"
	kill -STOP "$OPTIM"
	cat "$CASE/data.bin" >&8 3>&- &
	echo $! >>"$T/pids"
	eventually sh -c "mt-store stat $RUN | grep -q 'waits for the commit of step 1'"
	sleep 0.2                               # it has sent its micro-batches
	kill -STOP "$step"
	kill -CONT "$OPTIM"
	eventually test -e "$T/ck/step-00000001"
	for p in "$step" "$saver" "$OPTIM" "$STREAM"; do kill -9 "$p"; done
	exec 8>&-
	cp "$T/step.out" "$T/metrics"
	no grep -q '"step": 1,.*loss' "$T/metrics"
	mt-store rm "$RUN" --force
	make_run "$T/ck/step-00000001" --dtype fp32
	start_stages
	spawn serve mt-ckpt serve "$RUN" --dir "$T/ck"
	eventually sh -c "mt-store stat $RUN | grep -q mt-ckpt"
	mt-step "$RUN" $opts <"$CASE/data.bin" >>"$T/metrics" 2>"$T/step.err"
}

@test "no line of metrics is lost: mt-step paused while a step commits and is saved, all killed, the save resumed" {
	paused
	[ "$(steps <"$T/metrics")" = "$(seq -s ' ' 12)" ]
	head -1 "$T/metrics" | grep '"loss": [0-9.]*, "grad_norm": [0-9.]*, "lr": [0-9.e-]*, "tokens": [1-9]' |
		grep -q '"tokens_per_s": null, "time_s": null, "skipped": false}$'
	# the lines are those of an undisturbed run
	RUN=$(mt_run_name b)
	ready
	mt-step "$RUN" --steps 12 --batch 4 --micro 2 --seq 32 --lr 1e-3 <"$CASE/data.bin" >"$T/whole"
	timeless "$T/metrics" | cmp - <(timeless "$T/whole")
}

@test "no line of metrics is lost: the evaluation of the saved step is printed with its line" {
	paused --eval "$CASE/eval.bin" --eval-every 1
	[ "$(grep -v '^{"step": 0,' "$T/metrics" | grep eval_loss | grep '"loss"' | steps)" = "$(seq -s ' ' 12)" ]
}

@test "no line of metrics is lost: that of the saved step has its auxiliary loss" {
	mkdir "$T/case"
	cp -r "$GOLDEN/mixtral-aux/model" "$T/case"
	cat "$GOLDEN/mixtral-aux/data.bin" "$GOLDEN/mixtral-aux/data.bin" >"$T/case/data.bin"
	CASE=$T/case paused
	[ "$(steps <"$T/metrics")" = "$(seq -s ' ' 12)" ]
	RUN=$(mt_run_name b)
	make_run "$T/case/model" --dtype fp32
	start_stages
	mt-step "$RUN" --steps 12 --batch 4 --micro 2 --seq 32 --lr 1e-3 <"$T/case/data.bin" >"$T/whole"
	[ "$(grep -c '"aux_loss": [0-9]' "$T/metrics")" = 12 ]
	timeless "$T/metrics" | cmp - <(timeless "$T/whole")
}

# bats test_tags=slow
@test "no line of metrics is lost: all killed in a multi-part evaluation whose step's line is already printed" {
	local line
	ready
	python3 -c 'import struct, sys
for i in range(5000):
    sys.stdout.buffer.write(struct.pack("<5I", 4, *(1 + (i * j) % 90 for j in (1, 2, 3, 5))))' >"$T/eval"
	local step="mt-step $RUN --steps 4 --batch 2 --micro 1 --seq 8 --pack none --lr 1e-3 --wait 20"
	# past the evaluations at steps 0 and 1
	$step --until 1 --eval "$CASE/eval.bin" --eval-every 2 <"$CASE/data.bin" >"$T/m"
	spawn serve mt-ckpt serve "$RUN" --dir "$T/ck"
	local saver=$PID
	eventually sh -c "mt-store stat $RUN | grep -q mt-ckpt"
	kill -STOP "$saver"
	mkfifo "$T/lines"
	spawn step sh -c "exec $step --until 3 --ckpt-every 2 --eval $T/eval --eval-every 2 <$CASE/data.bin >$T/lines"
	read -r line <"$T/lines"
	kill -STOP "$STREAM"
	[[ $line == '{"step": 2, "loss"'*false\} ]]             # without eval_loss
	kill -CONT "$saver"
	eventually test -e "$T/ck/step-00000002"
	for p in "$PID" "$STREAM" "$OPTIM" "$saver"; do kill -9 "$p"; done
	wait "$PID" "$STREAM" "$OPTIM" "$saver" || true
	mt-ckpt save "$RUN" "$T/saved"                          # a save by hand stores the same line
	start_stages
	$step --until 3 --eval "$T/eval" --eval-every 2 <"$CASE/data.bin" >"$T/m"
	value() { sed -n 's/^{"step": 2, "loss".*"eval_loss": //p; s/^{"step": 2, "eval_loss": //p' "$T/m"; }
	local want
	want=$(value)
	[ -n "$want" ]
	end "$STREAM" "$OPTIM"
	for dir in ck/step-00000002 saved; do
		mt-ckpt load "$RUN" "$T/$dir"
		start_stages
		$step --until 3 --eval "$T/eval" --eval-every 2 <"$CASE/data.bin" >"$T/m"
		end "$STREAM" "$OPTIM"
		[ "$(value)" = "$want" ]
		[ "$(steps <"$T/m")" = "2 3 3" ]
	done
	mt-ckpt save "$RUN" "$T/three"
	no grep unlogged "$T/three/run.json"
}

@test "a line that --metrics FILE has is not added again: the save was taken while its step was evaluated" {
	local step="mt-step $RUN --steps 4 --batch 2 --micro 1 --seq 32 --lr 1e-3 --wait 20 --metrics $T/f"
	for i in $(seq 100); do cat "$CASE/eval.bin"; done >"$T/eval"
	ready
	spawn serve mt-ckpt serve "$RUN" --dir "$T/ck"
	local saver=$PID
	$step --until 2 --ckpt-every 2 --eval "$T/eval" --eval-every 2 <"$CASE/data.bin" >"$T/m"
	grep -q unlogged "$T/ck/step-00000002/run.json"
	end "$saver" "$STREAM" "$OPTIM"
	mt-ckpt load "$RUN" "$T/ck/step-00000002"
	start_stages
	$step --eval "$T/eval" --eval-every 2 <"$CASE/data.bin" >"$T/again"
	[ "$(steps <"$T/again")" = "2 3 4" ]
	[ "$(steps <"$T/f")" = "0 1 2 3 4" ]
	[ "$(grep eval_loss "$T/f" | steps)" = "0 2 4" ]
}

@test "a checkpoint whose lines are already printed stores none, and --resume prints none twice" {
	ready
	spawn serve mt-ckpt serve "$RUN" --dir "$T/ck" --keep 12
	eventually sh -c "mt-store stat $RUN | grep -q mt-ckpt"
	mt-step "$RUN" --steps 6 --batch 4 --micro 2 --seq 32 --lr 1e-3 --ckpt-every 1 <"$CASE/data.bin" >"$T/metrics"
	no grep -l unlogged "$T"/ck/step-*/run.json
	mt-ckpt save "$RUN" "$T/six"
	no grep unlogged "$T/six/run.json"
}
