#!/usr/bin/env bats
# Damaged shared memory: half filled, half made, from another boot or another user, corrupted or truncated under running
# stages. Each program reports it in one line and exits with the documented code, or waits; none trains on it.

load helpers

SHM=${MT_SHM_DIR:-/dev/shm}
setup_file() {
	export M=$BATS_FILE_TMPDIR/model
	python3 "$BATS_TEST_DIRNAME/lib/mksafetensors.py" make "$M"
	python3 -c 'import struct, sys
for i in range(300): sys.stdout.buffer.write(struct.pack("<18I", 17, *range(1, 18)))' >"$BATS_FILE_TMPDIR/records"
	export RECORDS=$BATS_FILE_TMPDIR/records
}

# Make and fill a run of the tiny model: tiny [create's options]
tiny() {
	mt-store create "$RUN" --config "$M" --step-tokens "${STEP_TOKENS:-1K}" "$@" 2>"$T/create.err"
	mt-ckpt load "$RUN" "$M" 2>"$T/load.err"
}
region() { echo "$SHM/mt.$(id -u).$RUN.$1"; }
word() { python3 "$TOP/tests/lib/region.py" "$(region "$1")" "${@:2}"; }
set_state() { printf "\\$1" | dd of="$(region control)" bs=1 seek=12 conv=notrunc status=none; }
step() { mt-step "$RUN" --steps 3 --batch 2 --seq 16 --lr 1e-3 "$@" <"$RECORDS"; }
spawn_step() { spawn step sh -c 'exec mt-step "$@" <"$0"' "$RECORDS" "$RUN" "$@"; }
says() { grep -q "$2" "$T/$1.out"; }
ended() { ! kill -0 "$1" 2>/dev/null; }
# Wait for a spawned program: its exit status must be CODE, its stderr one line that contains WORDS. A slow mt-step may
# report a line before it, because another stage has died.
ends() { # CODE PID NAME WORDS
	local code=0 lines=1
	eventually ended "$2"
	wait "$2" || code=$?
	[ "$3" != step ] || lines=$(wc -l <"$T/$3.err")
	[ "$code" = "$1" ] && [ "$(wc -l <"$T/$3.err")" = "$lines" ] && [ "$lines" -le 2 ] &&
		tail -n 1 "$T/$3.err" | grep -q "$4" && return 0
	echo "$3 ended with $code, wanted $1 and '$4':" >&2
	cat "$T/$3.err" >&2
	return 1
}
# Run as the user nobody, who may write to the region directory
other_user() {
	[ "$(id -u)" = 0 ] || skip "needs root, to be another user"
	command -v setpriv >/dev/null || skip "needs setpriv"
	setpriv --reuid=65534 --regid=65534 --clear-groups "$@" || skip "needs a region directory that others may write to"
}

# ---- filled too late

# A stage attaches; the run is then emptied; the stage claims its slot
late_stage() { # STATE
	tiny
	rm -f "$T/go"
	spawn late store-late "$RUN" 2 "$T/go"
	LATE=$PID
	eventually says late attached
	set_state "$1"
	touch "$T/go"
}
# The stage has released its slot and has claimed it few times, not thousands: the generation counts the claims
late_waits() {
	sleep 0.6
	no says late claimed
	kill -0 "$LATE"
	local w
	w=$(word control $(($(offset_of slots) + 2 * 256)))
	[ $((w >> 42)) = 0 ]
	[ $((w & 65535)) -lt 5 ]
}

@test "a stage that claims a run whose filler is stopped waits until it is filled" {
	late_stage 0
	late_waits
	mt-store init "$RUN" --seed 1 2>"$T/init.err"
	eventually says late "claimed 2"
}

@test "a stage that claims a run whose filler was killed waits until it is filled" {
	tiny
	spawn filler store-hold "$RUN" 4
	filler=$PID
	eventually sh -c "mt-store stat $RUN | grep -q '^a load or init'"
	kill -9 "$filler"
	wait "$filler" || true
	mt-store rm "$RUN" --force
	late_stage 1
	late_waits
	mt-store init "$RUN" --seed 1 2>"$T/init.err"
	eventually says late "claimed 2"
}

@test "a stage that claims a run removed after it attached sees the removal, as at any later moment" {
	late_stage 4
	eventually says late "claimed 4"
	[ ! -s "$T/late.err" ]
}

# bats test_tags=slow
@test "a stage that waits for a fill exits on SIGTERM, and reports when the run is removed" {
	late_stage 0
	late_waits
	kill "$LATE"
	ends 75 "$LATE" late "stopped while waiting"
	mt-store rm "$RUN"
	late_stage 0
	late_waits
	mt-store rm "$RUN"
	ends 66 "$LATE" late "was removed"
}

# ---- another boot

# bats test_tags=slow
@test "a run with a region of another boot is dirty for every program until mt-ckpt load fills it again" {
	for r in control rings store; do
		tiny
		word "$r" 48 1
		for program in "timeout 20 mt-optim" "timeout 20 mt-stream" \
			"timeout 20 mt-step --steps 1 --batch 1 --seq 16 --lr 1"; do
			fails_with 65 $program "$RUN"
			grep -q "before the machine was started.*mt-ckpt load" "$T/fails.err"
		done
		fails_with 65 mt-ckpt save "$RUN" "$T/save"
		mt-store ls "$RUN" | grep -q dirty
		mt-ckpt load "$RUN" "$M"
		mt-store ls "$RUN" | grep -q filled
		mt-ckpt save "$RUN" "$T/save-$r"
		mt-store rm "$RUN"
	done
}

@test "mt-store init adopts a run of another boot" {
	tiny
	word store 48 1
	word control 48 1
	mt-store init "$RUN" --seed 1 2>"$T/init.err"
	mt-store ls "$RUN" | grep -q filled
}

@test "create warns when MT_SHM_DIR is not in memory" {
	# beside the programs: tests/run has the tests' own directory in memory
	case $(stat -f -c %T "$BUILD") in tmpfs | ramfs | hugetlbfs) skip "the programs are in memory" ;; esac
	local dir=$BUILD/shm-$$
	mkdir "$dir"
	MT_SHM_DIR=$dir mt-store create "$RUN" --config "$M" --step-tokens 1K 2>"$T/err"
	MT_SHM_DIR=$dir mt-store rm "$RUN"
	rmdir "$dir"
	grep -q "^mt-store: warning: MT_SHM_DIR is not a tmpfs" "$T/err"
}

# ---- dirty

@test "when a run becomes dirty, every waiting stage exits 65, and the run can be loaded again" {
	tiny
	start_stages
	spawn saver mt-ckpt serve "$RUN" --dir "$T/out"
	saver=$PID
	kill -STOP "$OPTIM"
	spawn_step --steps 3 --batch 8 --micro 1 --seq 16 --lr 1e-3
	step=$PID
	eventually sh -c "mt-store stat $RUN | grep -q 'mt-stream 0.*waits for room in its gradient ring'"
	set_state 3
	ends 65 "$STREAM" stream1 "its store is dirty.*load a checkpoint"
	ends 65 "$step" step "its store is dirty.*load a checkpoint"
	ends 65 "$saver" saver "its store is dirty.*load a checkpoint"
	kill -CONT "$OPTIM"
	ends 65 "$OPTIM" optim "its store is dirty.*load a checkpoint"
	mt-ckpt load "$RUN" "$M"
}

# ---- half made

# bats test_tags=slow
@test "a half-made run whose maker is dead exits 76 with the remedy, without waiting" {
	truncate -s 1M "$(region control)"
	for program in "mt-optim" "mt-stream" "mt-step --steps 1 --batch 1 --seq 16 --lr 1 --wait 1" "mt-store serve"; do
		fails_with 76 timeout 20 $program "$RUN"
		grep -q "half made, and whoever made it is dead: mt-store rm $RUN" "$T/fails.err"
	done
	mt-store rm "$RUN"
	gone "$RUN"
}

# bats test_tags=slow
@test "stages wait for a half-made run whose maker lives, and rm needs --force" {
	truncate -s 1M "$(region control)"
	spawn maker python3 "$TOP/tests/lib/region.py" "$(region control)" lock
	maker=$PID
	eventually says maker held
	spawn step mt-step "$RUN" --steps 1 --batch 1 --seq 16 --lr 1 --wait 0
	step=$PID
	sleep 1.3
	kill -0 "$step"
	fails_with 75 mt-store rm "$RUN"
	kill -9 "$maker"
	ends 76 "$step" step "whoever made it is dead"
}

@test "create holds its lock while it makes a run: after a kill its remains can be recognized and removed" {
	python3 - "$(region control)" "$RUN" "$CONFIGS/demo.json" <<-'EOF'
	import fcntl, os, struct, subprocess, sys, time
	path, run, config = sys.argv[1:]
	for attempt in range(20):
	    p = subprocess.Popen(["mt-store", "create", run, "--config", config], stderr=subprocess.DEVNULL)
	    while p.poll() is None:
	        try: fd = os.open(path, os.O_RDONLY)
	        except OSError: continue
	        held = struct.unpack("hhqqi4x", fcntl.fcntl(fd, 36, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 128, 1, 0)))[0]
	        half = os.pread(fd, 12, 0)[8:] in (b"", bytes(4))
	        os.close(fd)
	        if held == fcntl.F_WRLCK and half:
	            p.kill(); p.wait()
	            sys.exit(0)
	    subprocess.run(["mt-store", "rm", run, "--force"])
	sys.exit("create was never seen to hold the lock")
	EOF
	fails_with 76 timeout 20 mt-step "$RUN" --steps 1 --batch 1 --seq 16 --lr 1 --wait 1
	mt-store rm "$RUN"
	gone "$RUN"
}

# ---- another user

@test "a FIFO or a symbolic link under a run's name is refused at once" {
	mkfifo -m 666 "$(region control)"
	for verb in stat "init --seed 1" "create --config $M"; do
		fails_with 65 timeout 10 mt-store $verb "$RUN"
		grep -q "not a regular file" "$T/fails.err"
	done
	timeout 10 mt-store ls >"$T/ls"
	no grep -q "^$RUN " "$T/ls"
	rm "$(region control)"
	ln -s /dev/null "$(region control)"
	fails_with 65 timeout 10 mt-store stat "$RUN"
	fails_with 65 timeout 10 mt-store create "$RUN" --config "$M"
}

@test "a FIFO beside a live run does not block stat, ls, save or rm" {
	tiny
	mkfifo -m 666 "$(region ring.x)"
	timeout 10 mt-store stat "$RUN" >/dev/null
	timeout 10 mt-store ls "$RUN" >/dev/null
	timeout 10 mt-ckpt save "$RUN" "$T/save"
	timeout 10 mt-ckpt load "$RUN" "$M"
	timeout 10 mt-store rm "$RUN"
	[ -p "$(region ring.x)" ]
}

@test "another user's file under a run's name exits 77, and no run is made beside it" {
	for kind in control rings store files; do
		other_user mkfifo -m 666 "$(region $kind)"
		fails_with 77 timeout 10 mt-store create "$RUN" --config "$M"
		grep -q "is not yours: uid 65534 owns it" "$T/fails.err"
		fails_with 77 timeout 10 mt-store rm "$RUN"
		rm "$(region $kind)"
		other_user touch "$(region $kind)"
		fails_with 77 timeout 10 mt-store create "$RUN" --config "$M"
		rm "$(region $kind)"
		gone "$RUN"
	done
}

@test "another user's file in place of the tokenizer's: save and export report it and write the rest, load refuses" {
	tiny
	other_user touch "$(region files)"
	for verb in save export; do
		timeout 10 mt-ckpt $verb "$RUN" "$T/$verb" 2>"$T/err"
		[ "$(wc -l <"$T/err")" = 1 ]
		grep -q "warning: written without the tokenizer's files: .* is not yours: uid 65534" "$T/err"
		mt-ckpt verify "$T/$verb"
	done
	cp -r "$M" "$T/model"
	echo '{}' >"$T/model/tokenizer.json"
	fails_with 77 timeout 10 mt-ckpt load "$RUN" "$T/model"
	mt-store rm "$RUN"
	[ -e "$(region files)" ]
	rm "$(region files)"
}

@test "ls lists no files of other users and no names that are not run names" {
	tiny
	name="$SHM/mt.$(id -u).$RUN"$'\033[31mx'".control"
	other_user touch "$SHM/mt.$(id -u).${RUN}other.control"
	other_user touch "$name"
	touch "$SHM/mt.$(id -u).$RUN"$'\033[32mx'".control"
	mt-store ls >"$T/ls"
	rm "$SHM/mt.$(id -u).$RUN"$'\033'* "$SHM/mt.$(id -u).${RUN}other.control"
	grep -q "^$RUN " "$T/ls"
	no grep -q "${RUN}other" "$T/ls"
	[ "$(tr -d '\n -~' <"$T/ls" | wc -c)" = 0 ]
}

@test "a FIFO given in place of a file is refused without waiting" {
	mkfifo "$T/fifo"
	tiny
	fails_with 65 timeout 10 mt-feed --shuffle 1 "$T/fifo"
	fails_with 74 timeout 10 mt-stream "$RUN" --trace "$T/fifo"
	fails_with 65 timeout 10 mt-store create "${RUN}b" --config "$T/fifo"
	fails_with 65 timeout 10 mt-ckpt load "$RUN" "$T/fifo"
	fails_with 65 timeout 10 mt-ckpt verify "$T/fifo"
}

# ---- rings

# bats test_tags=slow
@test "load and init empty user-made rings" {
	tiny
	mt-store ring "$RUN" mine --like grad.0
	for fill in "mt-ckpt load $RUN $M" "mt-store init $RUN --seed 1"; do
		word ring.mine mine.tail 5
		word ring.mine mine.head 2
		$fill 2>/dev/null
		[ "$(word ring.mine mine.tail) $(word ring.mine mine.head)" = "0 0" ]
	done
}

# Train with user-made rings for batches and gradients
own_stages() {
	spawn stream mt-stream "$RUN" --threads 1 --ring batch.0=mine --ring grad.0=grads
	STREAM=$PID
	spawn optim mt-optim "$RUN" --threads 1 --ring grad.0=grads
	OPTIM=$PID
}
holds_messages() { [ "$(word ring.mine mine.tail)" != "$(word ring.mine mine.head)" ]; }

@test "a load of an earlier step drops the batches in a user-made ring: training gives the same bits" {
	tiny
	mt-store ring "$RUN" mine --like batch.0
	mt-store ring "$RUN" grads --like grad.0
	own_stages
	step --ring batch.0=mine --until 1 >/dev/null
	mt-ckpt save "$RUN" "$T/earlier"
	step --ring batch.0=mine >/dev/null
	ckpt-dump "$RUN" >"$T/once"
	kill -STOP "$STREAM"
	spawn_step --steps 20 --batch 8 --micro 1 --seq 16 --lr 1e-3 --input new --ring batch.0=mine
	eventually holds_messages
	kill -9 "$PID" "$STREAM" "$OPTIM"
	wait "$PID" "$STREAM" "$OPTIM" || true
	holds_messages
	mt-ckpt load "$RUN" "$T/earlier"
	own_stages
	timeout -k 1 15 mt-step "$RUN" --steps 3 --batch 2 --seq 16 --lr 1e-3 --ring batch.0=mine <"$RECORDS" >"$T/metrics"
	[ "$(wc -l <"$T/metrics")" = 2 ]
	ckpt-dump "$RUN" | diff "$T/once" -
}

@test "a message of an older attempt is dropped, whatever transaction it names" {
	tiny
	mt-store ring "$RUN" mine --like batch.0
	word control "$(offset_of attempts)" 100
	for k in 1000001 1000002; do word ring.mine push mine "$k" 7; done
	spawn stream mt-stream "$RUN" --threads 1 --ring batch.0=mine
	spawn optim mt-optim "$RUN" --threads 1
	timeout -k 1 15 mt-step "$RUN" --steps 3 --batch 2 --seq 16 --lr 1e-3 --ring batch.0=mine <"$RECORDS" >"$T/metrics"
	[ "$(wc -l <"$T/metrics")" = 3 ]
}

# bats test_tags=slow
@test "a consumer refuses a ring whose head claims more messages than fit" {
	tiny
	start_stages
	spawn saver mt-ckpt serve "$RUN" --dir "$T/out"
	saver=$PID
	eventually sh -c "mt-store stat $RUN | grep -q '^mt-ckpt.*idle'"
	eventually sh -c "mt-store stat $RUN | grep -q '^mt-stream 0.*waits for a batch'"
	for damage in "grad.0 $OPTIM optim" "batch.0 $STREAM stream1" "save $saver saver"; do
		set -- $damage
		word rings "$1.tail" $((1 << 44))
		ends 65 "$2" "$3" "ring '$1' is damaged"
		word rings "$1.tail" 0
	done
}

# bats test_tags=slow
@test "a producer refuses a ring whose consumer is ahead of it" {
	tiny
	start_stages
	step --until 1 >/dev/null
	kill -STOP "$OPTIM"
	spawn_step --steps 3 --batch 8 --micro 1 --seq 16 --lr 1e-3 --input new
	step=$PID
	eventually sh -c "mt-store stat $RUN | grep -q 'mt-stream 0.*waits for room in its gradient ring'"
	head=$(word rings grad.0.head)
	word rings grad.0.head $((1 << 44))
	ends 65 "$STREAM" stream1 "ring 'grad.0' is damaged"
	word rings grad.0.head "$head"
	spawn stream2 mt-stream "$RUN" --threads 1
	eventually sh -c "mt-store stat $RUN | grep -q 'mt-stream 0.*waits for room in its gradient ring'"
	kill -STOP "$PID"
	word rings batch.0.head $((1 << 44))
	ends 65 "$step" step "ring 'batch.0' is damaged"
}

@test "mt-optim refuses a gradient ring without blocks or with blocks that are too small" {
	STEP_TOKENS=256 tiny
	fails_with 65 timeout 10 mt-optim "$RUN" --ring grad.0=save
	grep -q "ring for grad.0: blocks of 0 bytes" "$T/fails.err"
	fails_with 65 timeout 10 mt-optim "$RUN" --ring grad.3=batch.0
}

# ---- memory

# bats test_tags=slow
@test "with little address space every program exits with a documented code and one line" {
	tiny
	mt-stream --version >/dev/null
	tried=0
	limited() { # KIB PROGRAM ARGS...
		code=0
		(ulimit -v "$1"; "$2" --version) >/dev/null 2>&1 || return 0
		tried=$((tried + 1))
		(ulimit -v "$1"; shift; exec timeout 5 "$@") <"$RECORDS" >/dev/null 2>"$T/err" || code=$?
		case $code in
		0 | 124) ;;
		6[4-9] | 7[0-8]) [ "$(wc -l <"$T/err")" = 1 ] || { cat "$T/err"; return 1; } ;;
		*) echo "$* -> $code"; cat "$T/err"; return 1 ;;
		esac
	}
	for kib in 4500 5500 6500 10000; do
		limited $kib mt-store stat "$RUN"
		limited $kib mt-store create "${RUN}b" --config "$M" --step-tokens 1K
		rm -f "$SHM/mt.$(id -u).${RUN}b."*
		limited $kib mt-step "$RUN" --steps 1 --batch 1 --seq 16 --lr 1 --wait 0
		limited $kib mt-feed "$RECORDS"
		limited $kib mt-ckpt save "$RUN" "$T/save$kib"
	done
	[ "$tried" -gt 0 ] || skip "no program starts in so little (a sanitizer?)"
	for kib in 110000 117000 124000 131000 138000; do
		spawn optim mt-optim "$RUN" --threads 1
		optim=$PID
		spawn_step --steps 99999 --batch 2 --seq 16 --lr 1e-3 --input new --wait 3
		step=$PID
		limited $kib mt-stream "$RUN" --threads 4
		kill -9 "$step" "$optim"
		wait "$step" "$optim" || true
	done
}

@test "a region truncated under running stages ends each of them with 65 and one line" {
	tiny
	start_stages
	spawn saver mt-ckpt serve "$RUN" --dir "$T/out"
	saver=$PID
	mkfifo "$T/records"
	spawn step sh -c 'exec mt-step "$@" <>"$0"' "$T/records" "$RUN" --steps 99 --batch 2 --seq 16 --lr 1e-3
	step=$PID
	eventually sh -c "mt-store stat $RUN | grep -q '^mt-step.*waits for input'"
	eventually sh -c "mt-store stat $RUN | grep -q '^mt-ckpt.*idle'"
	eventually sh -c "mt-store stat $RUN | grep -q '^mt-optim.*idle'"
	eventually sh -c "mt-store stat $RUN | grep -q '^mt-stream.*waits for a batch'"
	truncate -s 128 "$(region control)"
	for f in control rings store; do truncate -s 0 "$(region $f)"; done
	for stage in "$OPTIM optim" "$STREAM stream1" "$saver saver" "$step step"; do
		set -- $stage
		ends 65 "$1" "$2" "shared memory is gone"
	done
	mt-store rm "$RUN"
}

@test "a store truncated during training ends the first stage that touches it with 65" {
	tiny
	start_stages
	for _ in $(seq 40); do cat "$RECORDS"; done >"$T/long"      # the training must not be over before
	RECORDS=$T/long spawn_step --steps 99999 --batch 2 --seq 16 --lr 1e-3
	eventually says step '"step": 2,'
	truncate -s 4096 "$(region store)"
	either_ended() { ended "$STREAM" || ended "$OPTIM"; }
	eventually either_ended
	if ended "$STREAM"; then ends 65 "$STREAM" stream1 "shared memory is gone"; fi
	if ended "$OPTIM"; then ends 65 "$OPTIM" optim "shared memory is gone"; fi
}

@test "a fault outside the shared regions still kills the process by its signal" {
	tiny
	spawn optim mt-optim "$RUN"
	eventually sh -c "mt-store stat $RUN | grep -q '^mt-optim.*idle'"
	code=0
	kill -SEGV "$PID"
	wait "$PID" || code=$?
	case $code in 139 | 99) ;; *) false ;; esac    # 99: exit code of a sanitizer
}
