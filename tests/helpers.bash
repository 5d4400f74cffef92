# helpers.bash: what every suite uses. MT is the directory of the programs, BUILD that of probes.
# A test's runs are named by mt_run_name; whatever a test leaves alive or in memory, teardown takes away.

TOP=$(cd "$BATS_TEST_DIRNAME/.." && pwd)
MT=${MT:-$TOP/bin}
BUILD=${BUILD:-$TOP/build}
PROBES=$BUILD/probes
GOLDEN=$TOP/tests/golden
CONFIGS=$TOP/tests/configs
export PATH="$MT:$PROBES:$PATH"
NIGHTLY=${NIGHTLY:-}            # 1: all seeds, all calls (make test NIGHTLY=1); else other ones of them each time

# Of WORDS each Nth, from a random one on; nightly all: some N WORD...
some() {
	local n=$1 word i=0
	shift
	[ -z "$NIGHTLY" ] || n=1
	local from=$((RANDOM % n))
	for word; do
		[ $((i++ % n)) != $from ] || echo "$word"
	done
}

# A name that no other test uses at this moment: mt_run_name; mt_run_name b
mt_run_name() { printf 't%s-%s%s' "$$" "${BATS_TEST_NUMBER:-0}" "$1"; }

need_cmd() { command -v "$1" >/dev/null 2>&1 || skip "needs $1"; }
need_atomic() { python3 -c 'import ctypes; ctypes.CDLL("libatomic.so.1")' || skip "needs libatomic1"; }
need_checkout() { git -C "$TOP" ls-files --error-unmatch Makefile >/dev/null 2>&1 || skip "not a git checkout"; }
need_terminal() { python3 -c 'import pty; pty.openpty()' 2>/dev/null || skip "needs terminals (/dev/pts)"; }

# A Python that has transformers: MT_TEST_PYTHON, or what `make venv` made. torch is apart: importing it takes long.
# Without bytecode (pip made none, so that `make venv` is fast) each import would compile both of them again.
unset PYTHONDONTWRITEBYTECODE
VENV=$TOP/build/venv
PYTHON=${MT_TEST_PYTHON:-python3}
[ -n "${MT_TEST_PYTHON:-}" ] || [ ! -e "$VENV/requirements.txt" ] || PYTHON=$VENV/bin/python
REAL_PYTHON=$PYTHON
[ ! -S "${PYTHON_SERVER:-}" ] || PYTHON=served-python
with_torch() { OMP_NUM_THREADS=1 PYTHONPATH=$VENV/torch${PYTHONPATH:+:$PYTHONPATH} "$REAL_PYTHON" "$@"; }
need_transformers() { has transformers jinja2 || skip "needs transformers (make venv)"; }
need_torch() { has torch transformers || skip "needs torch and transformers (make venv)"; }
has() { # PACKAGES...: looked for once a suite
	local known="$BATS_FILE_TMPDIR/has $*"
	[ -e "$known" ] ||
		with_torch -c 'import sys, importlib.util as u; print(all(map(u.find_spec, sys.argv[1:])))' "$@" >"$known"
	grep -qx True "$known"
}
# For setup_file: one Python imports the modules, and each "$PYTHON" of the suite's tests is a copy of it.
# "$REAL_PYTHON" starts by itself: tests of closed fds, of signals and of what is imported use it, and a few others.
serve_python() { # MODULE...
	export PYTHON_SERVER=$BATS_FILE_TMPDIR/python
	TRANSFORMERS_VERBOSITY=error "$REAL_PYTHON" "$TOP/tests/lib/python-server.py" "$PYTHON_SERVER" "$@" \
		</dev/null >"$PYTHON_SERVER.log" 2>&1 3>&- &
	eventually test -S "$PYTHON_SERVER"
	PYTHON=served-python
}
serve_tokenizers() {
	serve_python tokenizers jinja2.ext jinja2.sandbox transformers.models.auto.tokenization_auto \
		transformers.utils.chat_template_utils
}

# Programs of another machine, which qemu runs (tests/arm64): no ptrace there, nor what /proc says of the CPU
native() { [ -z "${MT_TEST_EMULATED:-}" ] || skip "not in emulation: $1"; }

# A file of these u32s: words FILE WORD...
words() { python3 -c 'import struct, sys
open(sys.argv[1], "wb").write(b"".join(struct.pack("<I", int(w) & 0xffffffff) for w in sys.argv[2:]))' "$@"; }
# Lines of metrics without the fields that depend on time
timeless() { sed 's/, "tokens_per_s.*, "skipped/, "skipped/' "$@"; }
# The step numbers of the lines on stdin
steps() { sed 's/.*"step": \([0-9]*\).*/\1/' | tr '\n' ' ' | sed 's/ $//'; }
# N documents of LENGTH tokens: documents N [LENGTH [MASK]]
documents() {
	python3 -c 'import struct, sys
n, length, mask = int(sys.argv[1]), int((sys.argv[2:] or [32])[0]), len(sys.argv) > 3
for i in range(n):
    tokens = ((i + j) % 90 + 1 | mask << 31 for j in range(length))
    sys.stdout.buffer.write(struct.pack("<%dI" % (length + 1), length, *tokens))' "$@"
}

# Files of a tier want direct I/O, and hard links that are counted: tests have them in $DISK, which teardown removes
need_tier() {
	DISK=$(mktemp -d "$BUILD/tier.XXXXXX")
	case $(stat -f -c %T "$DISK") in
	ext2/ext3 | xfs | btrfs | f2fs) ;;
	*) skip "needs ext4, xfs, btrfs or f2fs below $BUILD" ;;
	esac
}

# Open MPI starts as root only with these
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
need_mpi() {
	need_cmd mpirun
	[ -x "$MT/mt-link" ] || skip "mt-link was built without MPI"
}

# Start a program in the background, its output in $T/NAME.out and .err; its pid in $PID
spawn() { # NAME PROGRAM ARGS...
	local name=$1
	shift
	"$@" >"$T/$name.out" 2>"$T/$name.err" 3>&- &
	PID=$!
	echo "$PID" >>"$T/pids"
}

# Processes of ours end normally by SIGTERM: end PID...
end() {
	local p
	kill "$@"
	for p; do wait "$p"; done
}

# The command must fail (! COMMAND alone does not fail a test)
no() {
	if "$@"; then
		echo "came true: $*" >&2
		return 1
	fi
}

# The command ends with this exit code, whatever it writes
exits() { # CODE COMMAND...
	local wanted=$1 ended=0
	shift
	"$@" || ended=$?
	[ "$ended" = "$wanted" ] || { echo "$* -> $ended, wanted $wanted" >&2; return 1; }
}

# A value of the JSON object on stdin: value KEY
value() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

# Wait until a command succeeds, 30 s at most (50 ms steps): machines may be busy
eventually() {
	local i
	for i in $(seq 600); do
		"$@" >/dev/null 2>&1 && return 0
		sleep 0.05
	done
	echo "never came true: $*" >&2
	return 1
}

# A batch of stream-drive ends the mt-stream $PID with this code, however long the stream takes to start:
# batch_ends_stream CODE ROWS SEQ MICROS STREAMS SEED [WORD...]
batch_ends_stream() {
	local code=$1 stream=$PID
	shift
	spawn drive stream-drive step "$RUN" "$@"
	exits "$code" wait "$stream"
	kill -9 "$PID"
	wait "$PID" || true
}

# $T/data: $CASE's records often enough that a training is not over before a test has looked at it
long_data() {
	local i
	for i in $(seq 25); do cat "$CASE/data.bin"; done >"$T/25"
	for i in $(seq 25); do cat "$T/25"; done >"$T/data"
	rm "$T/25"
}

# Options of which some have other values, since none may be given twice: with "$STEP" --batch 1 --wait 0.2
with() {
	local old=" $1 " name
	shift
	while [ $# -gt 0 ]; do
		name=$1
		old=$(sed "s/ $name [^ ]* / /" <<<"$old")
		old="$old$name $2 "
		shift 2
	done
	printf '%s\n' "$old"
}

# A run of a Hugging Face model, filled: make_run DIR [create's options]
make_run() {
	local dir=$1
	shift
	mt-store create "$RUN" --config "$dir" "$@" 2>"$T/create.err"
	mt-ckpt load "$RUN" "$dir" 2>"$T/load.err"
}

# A model with random weights and a tokenizer whose tokens are bytes: byte_model DIR
byte_model() {
	"$PYTHON" "$TOP/tests/lib/chats.py" make "$T/tokenizers"
	mkdir "$1"
	cp "$T"/tokenizers/chat/* "$1"
	sed 's/"vocab_size": [0-9]*/"vocab_size": 259/' "$GOLDEN/llama3/model/config.json" >"$1/config.json"
	mt-store create "$RUN" --config "$1" --dtype fp32 2>"$T/err"
	mt-store init "$RUN" --seed 1 2>"$T/err"
	mt-ckpt export "$RUN" "$T/random" --dtype fp32 2>"$T/err"
	mt-store rm "$RUN"
	cp "$T/random/model.safetensors" "$1"
}

# The stages that serve: start_stages [mt-stream's options]; STREAMS many mt-streams. Their pids: $OPTIM, $STREAM
start_stages() {
	local i
	for i in $(seq "${STREAMS:-1}"); do
		spawn "stream$i" mt-stream "$RUN" --device "${DEVICE:-cpu}" --threads "${THREADS:-1}" "$@"
		STREAM=$PID
	done
	spawn optim mt-optim "$RUN" --threads "${OPTIM_THREADS:-1}"
	OPTIM=$PID
}

# A run of the model of $CASE, filled, with stages that serve: ready [create's options]
ready() { make_run "$CASE/model" --dtype fp32 "$@"; start_stages; }

# Tensors and state of two runs of programs that should agree to the last bit: hashes by array and unit
state_of() { ckpt-dump "$1"; }

# The failing commands' contract: exit code, exactly one line on stderr (naming the program), nothing on stdout
fails_with() { # CODE PROGRAM ARGS...
	local want=$1 code=0
	shift
	"$@" >"$T/fails.out" 2>"$T/fails.err" 3>&- </dev/null || code=$?
	if [ "$code" != "$want" ] || [ "$(wc -l <"$T/fails.err")" != 1 ] || [ -s "$T/fails.out" ]; then
		printf '%s\n' "$* -> $code, wanted $want; stderr:" >&2
		cat "$T/fails.err" >&2
		return 1
	fi
}

# The messages of a stream on a GPU, without those about its plan: messages FILE
messages() {
	grep -v -e '^mt-stream: train: ' -e '^mt-stream: predicted by ' \
		-e '^mt-stream: cuda: cuBLASLt does not take' "$1" || true
}

# KiB of device memory that the device takes for itself, as its plan reports: own_of FILE
own_of() {
	sed -n 's/.* \([0-9.]*\) of them the device.s own.*/\1/p' "$1" | awk 'NR == 1 { print int($1 * 1024) + 10 }'
}

# Run a command that may not read what the mode of a file forbids, which root may
by_mode() {
	if [ "$(id -u)" = 0 ]; then
		need_cmd setpriv
		set -- setpriv --bounding-set=-dac_override,-dac_read_search "$@"
	fi
	"$@"
}

# A run's region is a file of this name, a dot and the region's name
regions_of() { echo "${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$1"; }

# The address sanitizer wants to be the first library, to have /proc, and all the memory that it asks for
no_asan() { ! grep -q asan <<<"$BUILD" || skip "not with the address sanitizer"; }

# Nothing of a run is left in shared memory
gone() { ! ls "${MT_SHM_DIR:-/dev/shm}" 2>/dev/null | grep -q "^mt\.$(id -u)\.$1\."; }

setup() {
	T=$BATS_TEST_TMPDIR
	RUN=$(mt_run_name)
	: >"$T/pids"
}

teardown() {
	local p f
	if [ -n "${BATS_ERROR_STATUS:-}" ] && [ "${BATS_TEST_COMPLETED:-}" != 1 ]; then
		for f in "$T"/*.err; do [ -s "$f" ] && sed "s|^|$(basename "$f"): |" "$f"; done
	fi
	for p in $(jobs -p) $(cat "$T/pids"); do kill -CONT "$p" 2>/dev/null; kill -9 "$p" 2>/dev/null; done
	wait 2>/dev/null
	[ -z "${ON_DISK:-}" ] || rm -f "$ON_DISK"
	[ -z "${DISK:-}" ] || rm -rf "$DISK"
	[ -z "${GROUP:-}" ] || rmdir "$GROUP" 2>/dev/null || true
	[ ! -d "$T/disk" ] || umount "$T/disk" 2>/dev/null || true
	rm -f "$(regions_of "$(mt_run_name)")"*
}

# A small file system at $T/disk; teardown unmounts it
full_disk() {
	mkdir "$T/disk"
	mount -t tmpfs -o size="$1" tmpfs "$T/disk" 2>/dev/null || skip "needs the right to mount a small disk"
}

# Make a cgroup that limits memory, $GROUP: below ours with v1's memory controller; with v2, where a group has either
# processes or limits for groups below it, beside ours: memory_group LIMIT
memory_group() {
	local own1 own2 try dir
	own1=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
	own2=$(sed -n 's/^0:://p' /proc/self/cgroup)
	for try in "/sys/fs/cgroup/memory$own1:memory.limit_in_bytes" "/sys/fs/cgroup$own2:memory.max" \
		"/sys/fs/cgroup$(dirname "$own2"):memory.max"; do
		dir=${try%:*}/mt-test-$$
		mkdir "$dir" 2>/dev/null || continue
		GROUP=$dir
		if [ -w "$dir/${try#*:}" ] && echo "$1" >"$dir/${try#*:}" 2>/dev/null &&
			sh -c 'echo $$ >"$1/cgroup.procs"' sh "$dir" 2>/dev/null; then
			return
		fi
		rmdir "$dir"
	done
	skip "needs leave to make and join a memory cgroup"
}
in_group() { sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$GROUP" "$@"; }

# Where a field of the control region is, in bytes: offset_of FIELD
offset_of() {
	mt-store stat --abi | awk -v field="$1" 'NF == 1 { of = $1 } of == "mt_control" && $3 == field { print $1 }'
}
