# A stage counts as dead only on proof, and one whose slot was taken in spite of its lock takes back nothing
# that was decided or published: false deaths; stages that are stopped, replaced and continued; counters that wrap;
# damaged words.
load helpers

DATA=$GOLDEN/llama3/data.bin
STEPS=16

pid_in() { mt-store stat "$RUN" --json | python3 -c '
import json, sys
print(*[s["pid"] for s in json.load(sys.stdin)["stages"] if s["stage"] == sys.argv[1]])' "$1"; }
ended() { ! kill -0 "$1" 2>/dev/null; }
holds() { [ "$(pid_in "$1")" = "$2" ]; }
step_of() { mt-store stat "$RUN" --json | sed 's/.*"step": *\([0-9]*\), *"step_tokens.*/\1/'; }
past() { [ "$(step_of)" -ge "$1" ]; }
phase_is() { mt-store stat "$RUN" --json | grep -q "\"phase\": *\"$1\""; }
need_ns() { unshare --pid --fork --mount-proc true 2>/dev/null || skip "may not make a PID namespace"; }

# Run a program that believes that slot N's lock is free: liar N PROGRAM ARGS...
liar() { LD_PRELOAD=$PROBES/so-lies.so MT_LIE_LOCK=$1 MT_LIE_PROC=2 "${@:2}"; }
# Run a program that cannot read /proc, which fails with ERRNO (a number): blind ERRNO PROGRAM ARGS...
blind() { LD_PRELOAD=$PROBES/so-lies.so MT_LIE_PROC=$1 "${@:2}"; }

train() { # mt-step's own options; its records: $T/data
	[ -e "$T/data" ] || mt-feed --epochs 9 "$DATA" >"$T/data"
	mt-step "$RUN" --steps "$STEPS" --batch 4 --micro "${MICRO:-2}" --seq 32 --lr 1e-3 --wait 60 "$@" <"$T/data"
}

# The program exits with CODE and one line, and the first mt-optim keeps its slot: refused CODE PROGRAM ARGS...
refused() { fails_with "$@" && holds mt-optim "$OPTIM"; }

# bats test_tags=slow
@test "with few file descriptors a second mt-optim is refused, and the live one keeps its slot" {
	make_run "$GOLDEN/llama3/model"
	start_stages
	eventually holds mt-optim "$OPTIM"
	for n in 4 5 6 8; do        # 4: enough to open the first region, not to read /proc
		# shellcheck disable=SC2016
		refused "$([ $n = 4 ] && echo 74 || echo 75)" bash -c \
			'exec 3>&- 4>&- 5>&- 6>&- 7>&-; ulimit -n "$0" && exec mt-optim "$1"' "$n" "$RUN"
	done
}

# bats test_tags=slow
@test "with /proc failing by EMFILE, ENOMEM or EACCES a second mt-optim, rm, load and init are refused" {
	no_asan
	make_run "$GOLDEN/llama3/model"
	start_stages
	eventually holds mt-optim "$OPTIM"
	for errno in 24 12 13; do
		refused 75 blind $errno mt-optim "$RUN"
		refused 75 blind $errno mt-store rm "$RUN"
		refused 75 blind $errno mt-store init "$RUN" --seed 2
		refused 75 blind $errno mt-ckpt load "$RUN" "$GOLDEN/llama3/model"
	done
}

@test "--grad none: an mt-optim that cannot read /proc does not mark a healthy store dirty" {
	no_asan
	make_run "$GOLDEN/llama3/model" --grad none
	spawn stream mt-stream "$RUN" --device cpu --threads 1
	spawn optim env LD_PRELOAD="$PROBES/so-lies.so" MT_LIE_PROC=12 mt-optim "$RUN" --threads 1
	MICRO=4 train >"$T/step.out" 2>"$T/step.err"
	[ "$(wc -l <"$T/step.out")" = $STEPS ]
}

# bats test_tags=slow
@test "in another PID namespace a second mt-optim, rm, init and load are refused; after kill -9 mt-optim takes over" {
	need_ns
	make_run "$GOLDEN/llama3/model"
	start_stages
	eventually holds mt-optim "$OPTIM"
	away() { unshare --pid --fork --kill-child --mount-proc "$@"; }
	refused 75 away mt-optim "$RUN"
	grep -q "of another PID namespace" "$T/fails.err"
	refused 75 away mt-store rm "$RUN"
	refused 75 away mt-store init "$RUN" --seed 2
	refused 75 away mt-ckpt load "$RUN" "$GOLDEN/llama3/model"
	kill -9 "$OPTIM"
	wait "$OPTIM" || true
	spawn away unshare --pid --fork --kill-child --mount-proc mt-optim "$RUN" --threads 1
	train >"$T/step.out" 2>"$T/step.err"
	[ "$(wc -l <"$T/step.out")" = $STEPS ]
}

@test "a word without the locked bit is of no stage and counts as alive: exit 75 with the remedy" {
	need_cmd python3
	make_run "$GOLDEN/llama3/model"
	# pid 4194303, without the locked bit
	shm-poke "$RUN" slot 2 0xfffffc0000010001
	fails_with 75 mt-optim "$RUN"
	grep -q "cannot tell whether mt-optim" "$T/fails.err"
	fails_with 75 mt-store rm "$RUN"
	grep -q -- "--force" "$T/fails.err"
	mt-store rm "$RUN" --force
}

@test "a Python stage takes its slot as shm/PROTOCOL.md describes, and keeps mt-optim out until it dies" {
	need_cmd python3
	make_run "$GOLDEN/llama3/model"
	cat >"$T/stage.py" <<'PY'
import fcntl, mmap, os, struct, sys, time
path = "%s/mt.%d.%s.control" % (os.environ.get("MT_SHM_DIR", "/dev/shm"), os.geteuid(), sys.argv[1])
fd = os.open(path, os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, os.SEEK_SET, 2, 1, 0))
m = mmap.mmap(fd, 0)
start = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19])
slot = int(sys.argv[2]) + 2 * 256
struct.pack_into("<Q", m, slot, os.getpid() << 42 | 1 << 41 | (start & 0x1ffffff) << 16 | 1)
struct.pack_into("<Q", m, slot + 88, os.stat("/proc/self/ns/pid").st_ino)
print("held", flush=True)
time.sleep(60)
PY
	spawn python python3 "$T/stage.py" "$RUN" "$(offset_of slots)"
	local python=$PID
	eventually grep -q held "$T/python.out"
	fails_with 75 mt-optim "$RUN"
	grep -q "(pid $python)" "$T/fails.err"
	kill -9 "$python"
	wait "$python" || true
	start_stages
	eventually holds mt-optim "$OPTIM"
}

# ---- stop, replace,
# continue

reference() { # the state that an undisturbed run ends in; create's options
	make_run "$GOLDEN/llama3/model" "$@"
	start_stages
	train "${MORE[@]}" >"$T/want.out" 2>"$T/want.err"
	end "$OPTIM" "$STREAM"
	state_of "$RUN" | sed 's/ pin .*//' >"$T/want"
	mt-store rm "$RUN"
}

start_stage() { # NAME WRAPPER...: start mt-step last, it gives the others work
	local name=$1
	shift
	case $name in
	optim) spawn optim "$@" mt-optim "$RUN" --threads 1 ;;
	stream) spawn stream "$@" mt-stream "$RUN" --device cpu --threads 1 ;;
	ckpt) spawn ckpt "$@" mt-ckpt serve "$RUN" --dir "$T/ck" --keep 100 --threads 1 ;;
	step) spawn step sh -c 'exec "$@" <"$0"' "$T/data" "$@" mt-step "$RUN" --steps "$STEPS" --batch 4 --micro 2 \
		--seq 32 \
		--lr 1e-3 --wait 20 "${MORE[@]}" ;;
	esac
}

slot_of() { case $1 in step) echo 1 ;; optim) echo 2 ;; ckpt) echo 3 ;; stream) echo 8 ;; esac; }

# fenced STAGE FUNCTION HITS: STAGE is stopped when it enters FUNCTION for the HITS-th time; a second one takes its slot
# by a lying lock; after three more steps (for odd HITS, after the end of the run) the first one continues. FUNCTION is
# one that looks at the slot, or one that changes nothing before the next look: the lock alone protects other stores.
fenced() {
	local who=$1 fn=$2 hits=$3 first code=0 s n name pid_of
	name="$who at $fn, $hits"
	echo "# $name"
	rm -rf "$T/stopped" "$T/ck"
	make_run "$GOLDEN/llama3/model" "${CREATE[@]}"
	[ -e "$T/data" ] || mt-feed --epochs 9 "$DATA" >"$T/data"
	spawn watch shm-poke "$RUN" watch
	local watch=$PID
	for s in optim stream ckpt step; do
		[ $s != ckpt ] || [ "${#MORE[@]}" != 0 ] || continue
		if [ $s = "$who" ]; then start_stage $s fence-stop "$T/stopped" "$fn" "$hits"; else start_stage $s; fi
		eval "pid_of_$s=$PID"
	done
	eval "first=\$pid_of_$who"
	for n in $(seq 400); do
		[ ! -s "$T/stopped" ] || break
		kill -0 "$first" 2>/dev/null || break
		sleep 0.05
	done
	if [ ! -s "$T/stopped" ]; then
		wait "$first" || code=$?
		[ "$code" != 77 ] || skip "no breakpoints here"
		cat "$T/$who.err"
		return 1
	fi
	mv "$T/$who.err" "$T/first.err"
	mv "$T/$who.out" "$T/first.out"
	start_stage "$who" env LD_PRELOAD="$PROBES/so-lies.so" MT_LIE_LOCK="$(slot_of "$who")"
	local second=$PID step=$PID
	[ "$who" = step ] || eval "step=\$pid_of_step"
	n=$(step_of)
	if [ $((hits % 2)) = 0 ]; then
		for s in $(seq 200); do
			if past $((n + 3)) || past $STEPS; then break; fi
			sleep 0.05
		done
	else
		exits "${STEP_CODE:-0}" wait "$step"
		step=
	fi
	kill -CONT "$(cat "$T/stopped")"
	eventually ended "$first"
	code=0
	wait "$first" || code=$?
	cat "$T/first.err"
	[ "$code" = 75 ]
	[ "$(wc -l <"$T/first.err")" = 1 ]
	grep -q "has lost its place" "$T/first.err"
	if [ -n "$step" ]; then
		exits "${STEP_CODE:-0}" wait "$step"
	fi
	for s in optim stream; do
		eval "pid_of=\$pid_of_$s"
		[ $s != "$who" ] || pid_of=$second
		end "$pid_of"
	done
	if [ "${#MORE[@]}" != 0 ]; then
		pid_of=$pid_of_ckpt
		[ "$who" != ckpt ] || pid_of=$second
		end "$pid_of"
		for s in "$T"/ck/step-*; do mt-ckpt verify "$s"; done
	fi
	kill "$watch" || cat "$T/watch.err"
	wait "$watch"
	cat "$T/watch.out"
	state_of "$RUN" | sed 's/ pin .*//' | diff "$T/want" -
	mt-store rm "$RUN"
}

# bats test_tags=slow
@test "mt-optim stopped in accumulate, before it pops, publishes or commits: its replacement's bits stay" {
	no_asan
	MORE=() CREATE=()
	reference
	for point in "accumulate_round 9" "mt_ring_pop_many 6" "mt_optimizer_commit 4" "mt_publish 9" "mt_publish 12" \
		"mt_txn_cas 6"; do
		fenced optim $point
	done
}

# bats test_tags=slow
@test "mt-optim stopped before it pins a snapshot: its replacement's bits and checkpoints stay" {
	no_asan
	MORE=() CREATE=()
	reference
	MORE=(--ckpt-every 2)
	fenced optim mt_snap_pin 2
	fenced optim mt_snap_pin 3
}

# bats test_tags=slow
@test "mt-stream stopped in forward, in backward, before a piece: its replacement's bits stay" {
	no_asan
	MORE=() CREATE=()
	reference
	for point in "block_forward 9" "block_backward 10" "mt_ring_put 31" "mt_ring_put 44" "mt_ring_pop 4"; do
		fenced stream $point
	done
}

# bats test_tags=slow
@test "mt-step stopped before it opens a step, sends rows, logs a step: its replacement's bits stay" {
	no_asan
	MORE=() CREATE=()
	reference
	for point in "driver_begin 3" "mt_ring_push 6" "mt_ring_push 9" "mt_txn_cas 7" "mt_txn_cas 8"; do
		fenced step $point
	done
}

# bats test_tags=slow
@test "mt-ckpt stopped while it copies, before it seals: its replacement's checkpoints stay" {
	no_asan
	MORE=() CREATE=()
	reference
	MORE=(--ckpt-every 4) STEP_CODE=74      # the first one's save failed: it had released a pin
	fenced ckpt mt_snap_unpin 2
	fenced ckpt mt_snap_unpin 3
	fenced ckpt out_bytes 1
	fenced ckpt out_bytes 2
}

# ---- counters, damage

# bats test_tags=slow
@test "the attempt counter wraps without using 0, and training continues" {
	MORE=() CREATE=()
	reference
	for tries in 16777210 8388600; do
		make_run "$GOLDEN/llama3/model"
		shm-poke "$RUN" attempts $tries
		mt-ckpt load "$RUN" "$GOLDEN/llama3/model" 2>/dev/null
		start_stages
		train >"$T/step.out" 2>"$T/step.err"
		end "$OPTIM" "$STREAM"
		state_of "$RUN" | sed 's/ pin .*//' | diff "$T/want" -
		mt-store rm "$RUN"
	done
}

# bats test_tags=slow
@test "the last transaction number of a fill exits 78 with the remedy; the state is whole, and a load starts again" {
	make_run "$GOLDEN/llama3/model"
	start_stages
	shm-poke "$RUN" k 0xfffefffc
	exits 78 train >"$T/step.out" 2>"$T/step.err"
	grep -q 'save it with mt-ckpt' "$T/step.err"
	[ "$(wc -l <"$T/step.out")" = 3 ]
	end "$OPTIM" "$STREAM"
	mt-ckpt save "$RUN" "$T/saved"
	mt-ckpt load "$RUN" "$T/saved"
	start_stages
	train >"$T/step.out" 2>"$T/step.err"
	[ "$(tail -n 1 "$T/step.out" | cut -d, -f1)" = '{"step": '$STEPS ]
}

@test "a death aborts accumulate even if its generation number was in use 65536 holders ago" {
	make_run "$GOLDEN/llama3/model"
	attempt_is() { mt-store stat "$RUN" --json | grep -q "\"attempt\": *$1,"; }
	for generation in 7 65535; do
		shm-poke "$RUN" generation 2 $generation
		shm-poke "$RUN" attempts 40
		spawn hold store-hold "$RUN" 2 accumulate
		local holder=$PID
		eventually grep -q held "$T/hold.out"
		attempt_is 41
		kill -9 "$holder"
		wait "$holder" || true
		spawn serve mt-store serve "$RUN"
		eventually attempt_is 42
		end "$PID"
		mt-ckpt load "$RUN" "$GOLDEN/llama3/model" 2>/dev/null
	done
}

@test "damaged transaction words exit 65 with one line in every program, and none loops" {
	make_run "$GOLDEN/llama3/model"
	# wrong parity; both closed; both in accumulate; numbers far apart; an unknown phase
	for words in "0x0000000500000305 0" "0 0" "0x0000000200000201 0x0000000100000101" \
		"0x0000000400000205 0x0000000100000105" \
		"0x0000000000000009 0"; do
		read -r first second <<<"$words"
		shm-poke "$RUN" word 0 "$first"
		shm-poke "$RUN" word 1 "$second"
		fails_with 65 timeout -k 1 10 mt-optim "$RUN"
		fails_with 65 timeout -k 1 10 mt-stream "$RUN" --device cpu
		fails_with 65 timeout -k 1 10 mt-step "$RUN" --steps 2 --batch 1 --seq 32 --lr 1
		fails_with 65 timeout -k 1 10 mt-ckpt serve "$RUN" --dir "$T/ck"
		fails_with 65 timeout -k 1 10 mt-ckpt save "$RUN" "$T/save"
		timeout -k 1 10 mt-store stat "$RUN" >/dev/null
		timeout -k 1 10 mt-store ls >/dev/null
	done
	mt-ckpt load "$RUN" "$GOLDEN/llama3/model" 2>/dev/null
	mt-ckpt save "$RUN" "$T/save"
}

# bats test_tags=slow
@test "transaction words damaged under running stages end them with 65" {
	make_run "$GOLDEN/llama3/model"
	start_stages
	eventually holds mt-optim "$OPTIM"
	shm-poke "$RUN" word 0 0x0000000500000301
	local code
	for p in "$OPTIM" "$STREAM"; do
		exits 65 wait "$p"
	done
}

@test "units or tensors that do not match the geometry exit 65 with one line, and rm removes the run" {
	for what in unit tensor geometry types; do
		make_run "$GOLDEN/llama3/model"
		shm-poke "$RUN" layout $what
		fails_with 65 timeout -k 1 10 mt-optim "$RUN"
		fails_with 65 timeout -k 1 10 mt-stream "$RUN" --device cpu
		fails_with 65 timeout -k 1 10 mt-step "$RUN" --steps 2 --batch 1 --seq 32 --lr 1
		fails_with 65 timeout -k 1 10 mt-ckpt save "$RUN" "$T/save"
		fails_with 65 timeout -k 1 10 mt-store stat "$RUN"
		grep -q "its control region is damaged" "$T/fails.err"
		mt-store rm "$RUN"
	done
}

@test "a choice table with a cycle or an offset outside it exits 65 with one line, and nothing loops" {
	for how in cycle outside; do
		make_run "$GOLDEN/llama3/model"
		shm-poke "$RUN" choices $how
		fails_with 65 timeout -k 1 10 mt-stream "$RUN" --device cpu
		fails_with 65 timeout -k 1 10 mt-ckpt save "$RUN" "$T/save"
		fails_with 65 timeout -k 1 10 shm-poke "$RUN" choices $how
		mt-store rm "$RUN"
	done
}
