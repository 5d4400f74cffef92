#!/usr/bin/env bats
# mt-store makes a whole run or none; it fills, shows, watches and removes runs.

load helpers

demo() { mt-store create "$1" --config "$CONFIGS/demo.json" --step-tokens 1K "${@:2}" 2>/dev/null; }
peek() { store-peek "$1" | grep "^$2 "; }
# The first value of a key in the JSON: the run's own values come before those of its parts
stat_value() { mt-store stat "$1" --json | grep -o "\"$2\":[^,}]*" | head -1 | cut -d: -f2-; }
stat_is() { [ "$(stat_value "$1" "$2")" = "$3" ]; }
stat_is_not() { [ "$(stat_value "$1" "$2")" != "$3" ]; }
stat_has() { mt-store stat "$1" --json | grep -q "$2"; }

one_cpu() { taskset -cp $$ | sed 's/.*: //; s/[,-].*//'; }

# Run COMMAND with a private tmpfs of SIZE as its region directory: in_tmpfs SIZE COMMAND...
in_tmpfs() {
	local user="" dir=$T/tmpfs
	mkdir -p "$dir"
	unshare -m true 2>/dev/null || user=-r
	unshare $user -m true 2>/dev/null || skip "needs leave to mount (unshare -m)"
	unshare $user -m sh -c 'mount -t tmpfs -o size="$1" tmpfs "$2" || exit 99; export MT_SHM_DIR="$2"; shift 2; "$@"' \
		sh "$1" "$dir" "${@:2}"
}

# The same with huge pages where a program asks for them: in_huge_tmpfs SIZE COMMAND...
in_huge_tmpfs() {
	[ -d /sys/kernel/mm/transparent_hugepage ] || skip "needs a kernel with transparent huge pages"
	in_tmpfs "$1,huge=advise" "${@:2}" || {
		[ $? != 99 ] || skip "needs a tmpfs that takes huge=advise"
		return 1
	}
}

# Of larger pages, as some arm64 kernels have, mt-store says nothing: huge ones have 512 MiB there
small_pages() { [ "$(getconf PAGESIZE)" = 4096 ] || skip "needs pages of 4 KiB"; }
need_huge() { # MIB, which the kernel has free in pieces of 2 MiB and more
	[ "$(awk '{ for (i = 14; i <= NF; i++) n += $i * 2 ^ (i - 13) } END { print n + 0 }' /proc/buddyinfo)" -gt "$1" ] ||
		skip "needs $1 MiB of memory in pieces of 2 MiB"
}

# A run of 1.2 GiB of state
large() {
	mkdir -p "$T/large"
	sed 's/"vocab_size": [0-9]*/"vocab_size": 140000/' "$CONFIGS/demo.json" >"$T/large/config.json"
	"$1" 1500M mt-store create "$RUN" --config "$T/large" --step-tokens 1K 2>"$T/large.err"
}

@test "a ring of a run that was removed meanwhile: the message says that the run was removed" {
	need_cmd python3
	mt-store create "$RUN" --config "$CONFIGS/demo.json" --step-tokens 1K --node 0/2 2>"$T/create.err"
	cat >"$T/open.py" <<-'END'
		import ctypes, subprocess, sys
		mt = ctypes.CDLL(sys.argv[1])
		mt.mt_errmsg.restype = ctypes.c_char_p
		run, ring = ctypes.c_void_p(), ctypes.c_void_p()
		rings = 1                       # MT_RUN_RINGS
		assert mt.mt_run_open(ctypes.byref(run), sys.argv[2].encode(), rings) == 0, mt.mt_errmsg()
		subprocess.check_call(["mt-store", "rm", sys.argv[2], "--force"])
		assert mt.mt_ring_open(run, b"link.0", ctypes.byref(ring)) == -66
		print(mt.mt_errmsg().decode())
	END
	[ "$(python3 "$T/open.py" "$BUILD/libmt.so" "$RUN")" = "run '$RUN' was removed" ]
}

@test "create makes three regions of mode 0600 and prints their sizes in one line" {
	run mt-store create "$RUN" --config "$CONFIGS/demo.json" --step-tokens 1K
	[ "$status" = 0 ]
	[ "${#lines[@]}" = 1 ]
	[[ $output == "mt-store: run '$RUN': llama, 4877568 parameters, bf16, gradients fp32: "*" a parameter;"* ]]
	[ "$(stat -c %a "$(regions_of "$RUN")".* | sort -u)" = 600 ]
	[ "$(ls "$(regions_of "$RUN")".* | sed 's/.*\.//' | sort | tr '\n' ' ')" = "control rings store " ]
}

@test "create allocates a region's space in full" {
	demo "$RUN"
	for f in "$(regions_of "$RUN")".*; do
		[ $(($(stat -c '%b * %B' "$f"))) -ge "$(stat -c %s "$f")" ]
	done
}

# bats test_tags=slow
@test "a store uses huge pages on a tmpfs with huge=advise and small pages without it, and stat shows which" {
	small_pages
	need_huge 600
	need_cmd python3
	cat >"$T/look" <<-'END'
		mt-store create "$1" --config "$2/demo.json" --step-tokens 1K 2>/dev/null || exit 1
		mt-store stat "$1" | grep '^pages:'
		mt-store stat "$1" --json | grep -o '"huge_pages":[0-9.]*'
		python3 - "$MT_SHM_DIR"/mt.*."$1".store <<-'PY'
			import ctypes, mmap, os, re, sys
			with open(sys.argv[1], "rb") as f:
			    m = mmap.mmap(f.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
			sum(m[::4096])
			smaps = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", open("/proc/self/smaps").read())
			pmd = r"(?:Shmem|File)PmdMapped: +(\d+)"
			mapped = sum(int(k) for v in smaps if sys.argv[1] in v for k in re.findall(pmd, v))
			print("mapped", mapped * 1024 * 2 > len(m))
		PY
	END
	in_huge_tmpfs 200M sh "$T/look" "$RUN" "$CONFIGS" >"$T/huge"
	in_tmpfs 200M sh "$T/look" "$RUN" "$CONFIGS" >"$T/small"
	grep -qx 'mapped True' "$T/huge"
	grep -q -E '^"huge_pages":(0\.[5-9]|1\.)' "$T/huge"
	grep -q -E '^pages: ([5-9].|100) % of the store on huge ones' "$T/huge"
	grep -qx 'mapped False' "$T/small"
	grep -qx '"huge_pages":0.0' "$T/small"
	grep -qx 'pages: 0 % of the store on huge ones' "$T/small"
}

# bats test_tags=slow
@test "create warns when a large store gets small pages and says how to mount huge ones; with huge pages it is silent" {
	small_pages
	need_huge 3000
	[ "$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)" -gt 4000 ] || skip "needs 4 GB of memory"
	large in_tmpfs
	[ "$(wc -l <"$T/large.err")" = 2 ]
	grep -q "^mt-store: note: the store lies on pages of 4 KiB: .*: mount -o remount,huge=advise $T/tmpfs; or " \
		"$T/large.err"
	large in_huge_tmpfs
	[ "$(wc -l <"$T/large.err")" = 1 ]
}

@test "create accepts the directory that holds config.json" {
	mkdir "$T/model"
	cp "$CONFIGS/demo.json" "$T/model/config.json"
	mt-store create "$RUN" --config "$T/model" 2>/dev/null
	stat_is "$RUN" params 4877568
}

# bats test_tags=slow
@test "create exits 73 if the run exists and leaves that run unchanged" {
	demo "$RUN"
	mt-store init "$RUN" --seed 1 2>/dev/null
	before=$(peek "$RUN" state)
	fails_with 73 mt-store create "$RUN" --config "$CONFIGS/demo.json"
	[ "$(peek "$RUN" state)" = "$before" ]
}

@test "every command exits 66 for a run that does not exist" {
	for verb in "init --seed 1" stat ls rm; do
		fails_with 66 mt-store $verb "$RUN"
	done
}

@test "run names with invalid characters, empty names and names over 32 characters exit 64" {
	for name in a.b a/b 'a b' "" ä "$(printf 'x%.0s' $(seq 33))"; do
		MT_RUN='' fails_with 64 mt-store create "$name" --config "$CONFIGS/demo.json"
		MT_RUN='' fails_with 64 mt-store stat "$name"
	done
}

@test "a run name of 32 characters is accepted" {
	name=$(printf '%s-%032d' "$RUN" 0 | cut -c 1-32)
	demo "$name"
	mt-store rm "$name"
	gone "$name"
}

@test "without a RUN argument MT_RUN is used" {
	MT_RUN=$RUN mt-store create --config "$CONFIGS/demo.json" 2>/dev/null
	MT_RUN=$RUN mt-store stat | grep -qx "run $RUN: empty, step 0"
	unset MT_RUN
	fails_with 64 mt-store stat
}

@test "invalid options exit 64" {
	fails_with 64 mt-store
	fails_with 64 mt-store make "$RUN"
	fails_with 64 mt-store create "$RUN"
	fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --dtype fp16
	fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --dtype none
	fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --grad fp16
	fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --step-tokens 0
	fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --seed 1
	fails_with 64 mt-store init "$RUN"
	fails_with 64 mt-store init "$RUN" --seed -1
	fails_with 64 mt-store rm "$RUN" --json
	fails_with 64 mt-store stat "$RUN" more
	gone "$RUN"
}

@test "create --streams N makes rings for N mt-streams, 8 without it; one that is missing is named with a reason" {
	local bytes=() n
	for n in "" 8 1 64; do
		demo "$RUN" ${n:+--streams $n}
		bytes+=("$(stat_value "$RUN" bytes)")
		fails_with 66 mt-store ring "$RUN" more --like "grad.${n:-8}"
		grep -q "no ring 'grad.${n:-8}' in run '$RUN', which has ${n:-8} mt-streams at most: mt-store create" \
			"$T/fails.err"
		mt-store ring "$RUN" more --like "batch.$((${n:-8} - 1))"
		mt-store rm "$RUN"
	done
	[ "${bytes[0]}" = "${bytes[1]}" ]
	# 7 and 56 batch rings of two blocks, and as many of eight gradient pieces of 1 MiB
	[ $((bytes[1] - bytes[2])) -ge $((7 * 8 << 20)) ] && [ $((bytes[1] - bytes[2])) -lt $((7 * 9 << 20)) ]
	[ $((bytes[3] - bytes[1])) -ge $((56 * 8 << 20)) ] && [ $((bytes[3] - bytes[1])) -lt $((56 * 9 << 20)) ]
	for n in 0 65 x -1 1x ""; do
		fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --streams "$n"
		grep -q -- "--streams: '$n' is not a number from 1 to 64" "$T/fails.err"
	done
	gone "$RUN"
}

@test "an invalid NUMA policy exits 64 and leaves no files" {
	for policy in local bind preferred bind: bind:x bind:9999 preferred:0-1 default:0 interleave:0-; do
		fails_with 64 mt-store create "$RUN" --config "$CONFIGS/demo.json" --numa "$policy"
		gone "$RUN"
	done
}

@test "NUMA policies for node 0 are accepted and shown by stat" {
	[ -d /sys/devices/system/node/node0 ] || skip "needs a kernel with NUMA nodes"
	for policy in default interleave bind:0 preferred:0; do
		demo "$RUN" --numa "$policy" || skip "mbind is not allowed here"
		stat_is "$RUN" numa "\"$policy\""
		mt-store rm "$RUN"
	done
}

@test "options are accepted before and after operands" {
	mt-store --step-tokens 1K create --config "$CONFIGS/demo.json" "$RUN" 2>/dev/null
	mt-store --json stat "$RUN" | grep -q '"step_tokens":1024,'
}

# A geometry whose arrays are much larger than 2 MiB: 16.1M parameters in blocks of 7.9M
wide() {
	printf '{"model_type": "llama", "hidden_size": 1024, "intermediate_size": 1200, "num_hidden_layers": 2, %s' \
		'"num_attention_heads": 16, "vocab_size": 64}' >"$T/wide.json"
	mt-store create "$RUN" --config "$T/wide.json" --step-tokens 1K "$@" 2>/dev/null
}

# A run takes WANT bytes a parameter, and at most 8 % more for alignment: takes WANT OPTIONS...
takes() {
	local want=$1 got
	shift
	wide "$@"
	got=$(stat_value "$RUN" bytes_per_param)
	mt-store rm "$RUN"
	awk -v got="$got" -v want="$want" 'BEGIN { exit !(got >= want && got <= 1.08 * want) }'
}

# bats test_tags=slow
@test "a bf16 run takes 12, 14 or 16 bytes a parameter with --grad none, bf16 or fp32; an fp32 run takes 16" {
	takes 12 --grad none
	takes 14 --grad bf16
	takes 16 --grad fp32
	takes 16
	takes 16 --dtype fp32
}

@test "alignment takes less than 1 % of the layout of Qwen2.5-7B" {
	for row in "none 12" "bf16 14" "fp32 16"; do
		set -- $row
		store-layout "$CONFIGS/qwen2.5-7b.json" bf16 "$1" >"$T/layout"
		awk -v want="$2" '$1 == "params" { p = $2 } $1 == "store_bytes" { b = $2 }
			END { exit !(p == 7615616512 && b / p >= want && b / p < want * 1.01) }' "$T/layout"
	done
}

@test "init gives the random weights of transformers: normal matrices, norms 1, biases 0, padding row 0" {
	printf '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, %s %s' \
		'"num_attention_heads": 4, "vocab_size": 512, "attention_bias": true, "mlp_bias": true,' \
		'"initializer_range": 0.05, "pad_token_id": 3}' >"$T/config.json"
	mt-store create "$RUN" --config "$T/config.json" --dtype fp32 --step-tokens 1K 2>/dev/null
	mt-store init "$RUN" --seed 7 2>/dev/null
	store-peek "$RUN" >"$T/peek"
	# columns: name, hash, mean, sd, minimum, maximum; bounds are 4 standard errors of mean and sd, n is at least 4096
	awk '$1 ~ /(proj|lm_head|embed_tokens).weight/ { n++; bad += $3 * $3 > 0.0032 ^ 2 || $4 < 0.0475 || $4 > 0.0525 }
		$1 ~ /norm.weight/ { n++; bad += $5 != 1 || $6 != 1 }
		$1 ~ /bias/ { n++; bad += $5 != 0 || $6 != 0 }
		END { exit !(n == 19 && !bad) }' "$T/peek"
	grep -qx "moments zero" "$T/peek"
	grep -qx "gaps zero" "$T/peek"
}

@test "init gives vectors of other families the values of transformers' modules" {
	for c in nemotron apertus; do
		mt-store create "$RUN" --config "$GOLDEN/$c/model" --dtype fp32 2>"$T/err"
		mt-store init "$RUN" --seed 1 2>"$T/err"
		mt-ckpt export "$RUN" "$T/$c" 2>"$T/err"
		mt-store rm "$RUN"
	done
	python3 - "$GOLDEN" "$T" <<-'END'
		import math, sys
		sys.path.insert(0, sys.argv[1])
		from records import read_safetensors
		def values(case, name, *want):
		    got = set(read_safetensors("%s/%s/model.safetensors" % (sys.argv[2], case))[name][2])
		    assert len(got) == 1 and math.isclose(got.pop(), want[0], rel_tol=1e-6), (name, want)
		values("nemotron", "model.layers.1.input_layernorm.weight", 1)
		values("nemotron", "model.norm.bias", 0)
		values("apertus", "model.layers.1.attention_layernorm.weight", 1)
		values("apertus", "model.layers.1.mlp.act_fn.alpha_p", math.log(math.expm1(0.8)))
		values("apertus", "model.layers.1.mlp.act_fn.alpha_n", math.log(math.expm1(0.3)))
		values("apertus", "model.layers.0.mlp.act_fn.beta", 0.5)
		values("apertus", "model.layers.0.mlp.act_fn.eps", -1e-6)
	END
}

@test "init gives GPT-2 the weights of transformers: o and down smaller by the root of 2 layers" {
	printf '{"model_type": "gpt2", "n_embd": 64, "n_layer": 8, "n_head": 4, "vocab_size": 512, "n_positions": 128}' \
		>"$T/config.json"
	mt-store create "$RUN" --config "$T/config.json" --dtype fp32 --step-tokens 1K 2>/dev/null
	mt-store init "$RUN" --seed 7 2>/dev/null
	store-peek "$RUN" >"$T/peek"
	awk '$1 ~ /(wte|wpe|c_attn|c_fc).weight/ { n++; bad += $3 * $3 > 0.0013 ^ 2 || $4 < 0.019 || $4 > 0.021 }
		$1 ~ /c_proj.weight/ { n++; bad += $3 * $3 > 0.0004 ^ 2 || $4 < 0.00475 || $4 > 0.00525 }
		$1 ~ /ln_[12f].weight/ { n++; bad += $5 != 1 || $6 != 1 }
		$1 ~ /bias/ { n++; bad += $5 != 0 || $6 != 0 }
		END { exit !(n == 2 + 8 * 12 + 2 && !bad) }' "$T/peek"
	grep -qx "gaps zero" "$T/peek"
}

@test "init gives Youtu the weights of transformers: by default 2 / sqrt(5 hidden), twice as much in the embedding" {
	printf '{"model_type": "youtu", "hidden_size": 80, "num_hidden_layers": 1, "num_attention_heads": 2, %s' \
		'"num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 512}' >"$T/config.json"
	mt-store create "$RUN" --config "$T/config.json" --dtype fp32 --step-tokens 1K 2>/dev/null
	mt-store init "$RUN" --seed 7 2>/dev/null
	store-peek "$RUN" >"$T/peek"
	awk '$1 ~ /embed_tokens.weight/ { n++; bad += $4 < 0.19 || $4 > 0.21 }
		$1 ~ /proj.*.weight/ { n++; bad += $4 < 0.095 || $4 > 0.105 }
		END { exit !(n == 9 && !bad) }' "$T/peek"
}

@test "init sets the row of pad_token_id to zero, and no other row" {
	for pad in 0 1; do
		printf '{"model_type": "mistral", "hidden_size": 2, "head_dim": 2, "intermediate_size": 2, %s %s}' \
			'"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 2,' \
			"\"pad_token_id\": $pad" >"$T/config.json"
		mt-store create "$RUN$pad" --config "$T/config.json" --dtype fp32 --step-tokens 1K 2>/dev/null
		mt-store init "$RUN$pad" --seed 7 2>/dev/null
	done
	# only unit 0: the embedding of 2 x 2 starts the first page after the header
	first() { od -An -tx4 -j 4096 -N 8 "$(regions_of "$1").store" | tr -d ' '; }
	second() { od -An -tx4 -j 4104 -N 8 "$(regions_of "$1").store" | tr -d ' '; }
	[ "$(first "${RUN}0")" = 0000000000000000 ]
	[ "$(second "${RUN}1")" = 0000000000000000 ]
	[ "$(first "${RUN}1")" != 0000000000000000 ]
	[ "$(second "${RUN}0")" != 0000000000000000 ]
}

# bats test_tags=slow
@test "the bits that init writes depend on the seed, not on the number of threads" {
	need_cmd taskset
	demo "$RUN"
	mt-store init "$RUN" --seed 5 2>/dev/null
	all=$(peek "$RUN" state)
	taskset -c "$(one_cpu)" mt-store init "$RUN" --seed 5 2>/dev/null
	[ "$(peek "$RUN" state)" = "$all" ]
	mt-store init "$RUN" --seed 6 2>/dev/null
	[ "$(peek "$RUN" state)" != "$all" ]
}

# bats test_tags=slow
@test "the two halves of a bf16 run hold the same master weights as an fp32 run with the same seed" {
	demo "$RUN"
	demo "${RUN}b" --dtype fp32
	mt-store init "$RUN" --seed 3 2>/dev/null
	mt-store init "${RUN}b" --seed 3 2>/dev/null
	[ "$(store-peek "$RUN" | grep weight)" = "$(store-peek "${RUN}b" | grep weight)" ]
}

@test "init gives each tensor different numbers" {
	demo "$RUN"
	mt-store init "$RUN" --seed 3 2>/dev/null
	[ "$(store-peek "$RUN" | grep _proj.weight | awk '{ print $2 }' | sort -u | wc -l)" = 42 ]
}

# bats test_tags=slow
@test "a second init fills the run again, at step 0 and with zero moments" {
	demo "$RUN"
	mt-store init "$RUN" --seed 3 2>/dev/null
	before=$(peek "$RUN" state)
	mt-store init "$RUN" --seed 4 2>/dev/null
	mt-store init "$RUN" --seed 3 2>/dev/null
	[ "$(peek "$RUN" state)" = "$before" ]
	stat_is "$RUN" state '"filled"'
}

@test "a new run is empty until it is filled" {
	demo "$RUN"
	stat_is "$RUN" state '"empty"'
	mt-store init "$RUN" --seed 1 2>/dev/null
	stat_is "$RUN" state '"filled"'
}

# bats test_tags=slow
@test "an interrupted init leaves an empty run and ends by the signal" {
	need_cmd taskset
	printf '{"model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, %s' \
		'"num_attention_heads": 16, "vocab_size": 32000}' >"$T/config.json"
	mt-store create "$RUN" --config "$T/config.json" --step-tokens 1K --grad none 2>/dev/null || skip "needs 2.3 GB"
	spawn init taskset -c "$(one_cpu)" mt-store init "$RUN" --seed 1    # on one CPU it takes seconds
	eventually stat_is "$RUN" state '"filling"'
	kill -TERM "$PID"
	exits 143 wait "$PID"
	stat_is "$RUN" state '"empty"'
}

# bats test_tags=slow
@test "a killed init leaves a half-filled run, and the next init fills it" {
	need_cmd taskset
	printf '{"model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4, %s' \
		'"num_attention_heads": 16, "vocab_size": 32000}' >"$T/config.json"
	mt-store create "$RUN" --config "$T/config.json" --step-tokens 1K --grad none 2>/dev/null || skip "needs 1.5 GB"
	spawn init taskset -c "$(one_cpu)" mt-store init "$RUN" --seed 1    # on one CPU it takes seconds
	eventually stat_is "$RUN" state '"filling"'
	kill -KILL "$PID"
	wait "$PID" || true
	stat_is "$RUN" state '"filling"'
	mt-store stat "$RUN" | grep -q "dead, was: fills unit"
	mt-store init "$RUN" --seed 1 2>/dev/null
	stat_is "$RUN" state '"filled"'
}

# bats test_tags=slow
@test "a filler killed at any instruction never leaves a run marked as filled with an odd fill counter" {
	demo "$RUN"
	mt-store init "$RUN" --seed 1
	store-filldeath "$RUN" 300 >"$T/deaths"
	grep -Eq '^[1-9][0-9]* filled, [1-9][0-9]* being filled$' "$T/deaths"
}

@test "a store of another ABI version exits 76 and names the version; ls and rm still work" {
	demo "$RUN"
	printf '\377' | dd of="$(regions_of "$RUN").control" bs=1 seek=8 conv=notrunc status=none
	fails_with 76 mt-store stat "$RUN"
	grep -q "ABI version 255" "$T/fails.err"
	fails_with 76 mt-store init "$RUN" --seed 1
	mt-store ls | grep -q "^$RUN .*ABI version 255"
	mt-store rm "$RUN"
	gone "$RUN"
}

@test "a store made by another build exits 76" {
	demo "$RUN"
	printf '\377\376' | dd of="$(regions_of "$RUN").control" bs=1 seek=16 conv=notrunc status=none
	fails_with 76 mt-store stat "$RUN"
}

@test "a ring, a file or weights that a run gets while it is removed: exit 66, and nothing is left" {
	mkfifo "$T/go"
	for what in ring file fill; do
		demo "$RUN"
		spawn poke sh -c 'exec shm-poke "$0" $1 <"$2" >"$3"' "$RUN" $what "$T/go" "$T/poke"
		exec 8>"$T/go"
		eventually grep -q ready "$T/poke"
		mt-store rm "$RUN"
		exec 8>&-
		exits 66 wait $PID
		gone "$RUN"
		grep -q "run '$RUN' was removed" "$T/poke.err"
	done
}

@test "a half-made run exits 76 and can be listed and removed" {
	: >"$(regions_of "$RUN").control"
	fails_with 76 mt-store stat "$RUN"
	mt-store ls "$RUN" | grep -q "half made"
	mt-store rm "$RUN"
	gone "$RUN"
}

@test "a control region without its store is an error, not a crash" {
	demo "$RUN"
	rm "$(regions_of "$RUN").store"
	fails_with 66 mt-store stat "$RUN"
	fails_with 66 mt-store init "$RUN" --seed 1
	mt-store ls "$RUN" | grep -q "^$RUN "
	mt-store rm "$RUN"
	gone "$RUN"
}

@test "a truncated store region is refused before it is read" {
	demo "$RUN"
	truncate -s 1M "$(regions_of "$RUN").store"
	fails_with 65 mt-store stat "$RUN"
	fails_with 65 mt-store init "$RUN" --seed 1
}

@test "regions of another run under this run's name are refused" {
	demo "$RUN"
	demo "${RUN}b"
	mv "$(regions_of "${RUN}b").store" "$(regions_of "$RUN").store"
	fails_with 65 mt-store stat "$RUN"
}

@test "create on a tmpfs that is too small exits 71 with need, have and remedy, and leaves no files" {
	code=0
	in_tmpfs 8m sh -c \
		'mt-store create small --config "$1" --step-tokens 1K; echo "$? $(ls "$MT_SHM_DIR" | wc -l)" >"$2"' \
		sh "$CONFIGS/demo.json" "$T/after" 2>"$T/err" || code=$?
	[ "$code" = 0 ] || skip "needs leave to mount a tmpfs"
	[ "$(cat "$T/after")" = "71 0" ]
	[ "$(wc -l <"$T/err")" = 1 ]
	grep -q "need .* GiB, .* has .* GiB free: mount -o remount,size=1G $T/tmpfs, or rm an old run" "$T/err"
	in_tmpfs 8m sh -c 'MT_SHM_DIR=$(mktemp -d "$MT_SHM_DIR/below.XXXXXX") mt-store create small --config "$1" || :' \
		sh "$CONFIGS/demo.json" 2>"$T/err"
	grep -q "free: mount -t tmpfs -o size=1G mt DIR, and MT_SHM_DIR=DIR, or rm an old run" "$T/err"
}

@test "create of more than the machine's memory exits 71 and leaves no files" {
	fails_with 71 mt-store create "$RUN" --config "$CONFIGS/llama-120b.json"
	grep -q "need 17[0-9][0-9]\.[0-9]* GiB, this machine has .* GiB of RAM in all: a smaller model" "$T/fails.err"
	gone "$RUN"
}

@test "create of more than the cgroup's limit exits 71 instead of being killed, and leaves no files" {
	memory_group 150M
	fails_with 71 in_group mt-store create "$RUN" --config "$CONFIGS/demo.json"
	grep -q "the cgroup has .* left" "$T/fails.err"
	gone "$RUN"
	# a smaller run that fits is named with what it takes, and does
	first=$(sed -n 's/.* left: \(.*\) ([0-9.]* GiB).*, a smaller model.*/\1/p' "$T/fails.err" | sed 's/ (.*//')
	[ -n "$first" ]
	in_group mt-store create "$RUN" --config "$CONFIGS/demo.json" $first 2>/dev/null
}

@test "cgroup v2: the lesser of memory.max and memory.high counts, without pages of files" {
	local own
	own=$(sed -n 's/^0:://p' /proc/self/cgroup)
	[ -n "$own" ] && [ -e /sys/fs/cgroup ] && unshare --mount true 2>/dev/null ||
		skip "needs cgroup v2 and leave to mount"
	in_files() { # MAX HIGH CURRENT FILE_PAGES, in MiB: available, with files in place of the kernel's
		unshare --mount sh -c '
			mount -t tmpfs none /sys/fs/cgroup && mkdir -p "/sys/fs/cgroup$1" && cd "/sys/fs/cgroup$1" || exit
			for f in "memory.max $2" "memory.high $3" "memory.current $4"; do
				n=${f#* }
				case $n in max) ;; *) n=$((n << 20)) ;; esac
				echo $n >"${f% *}"
			done
			printf "anon 1\ninactive_file %s\nactive_file %s\nshmem 1\n" $(($5 << 19)) $(($5 << 19)) >memory.stat
			exec mt-store stat --memory --json' sh "$own" "$@" | value memory_available
	}
	[ "$(in_files 500 max 100 0)" = $((400 << 20)) ]
	[ "$(in_files 500 300 100 0)" = $((200 << 20)) ]
	[ "$(in_files max 300 100 60)" = $((260 << 20)) ]
	[ "$(in_files max 50 100 0)" = 0 ]
	[ "$(in_files max max 100 0)" -gt $((500 << 20)) ]
}

@test "pages of files do not count as used memory of a cgroup: the kernel takes them back" {
	local dir=${TMPDIR:-/var/tmp} used
	[ "$(stat -f -c %T "$dir")" != tmpfs ] || dir=/var/tmp
	[ "$(stat -f -c %T "$dir")" != tmpfs ] || skip "needs a directory on a disk"
	memory_group 320M
	ON_DISK=$(mktemp "$dir/mt-test.XXXXXX")
	in_group dd if=/dev/zero of="$ON_DISK" bs=1M count=200 conv=fsync status=none
	used=$(cat "$GROUP/memory.usage_in_bytes" "$GROUP/memory.current" 2>/dev/null) || true
	[ $((used >> 20)) -gt 150 ] || skip "pages of files in $dir are not charged to the cgroup"
	in_group mt-store stat --memory --json >"$T/memory"
	local have=$(value memory_available <"$T/memory")
	[ $((have >> 20)) -gt 250 ]
	[ $((have >> 20)) -le 320 ]
	in_group mt-store stat --memory | grep -q '^memory available in this cgroup: 0\.[23][0-9] GiB$'
	in_group mt-store create "$RUN" --config "$CONFIGS/demo.json" --step-tokens 1K
	mt-store rm "$RUN"
}

@test "stat --memory prints the available memory; with --abi, --prometheus or a run's name it exits 64" {
	mt-store stat --memory --json | grep -q '^{"memory_available": [0-9]*, "shm_free": [0-9nul]*}$'
	mt-store stat --memory | grep -q '^shared memory free: '
	fails_with 64 mt-store stat --memory --abi
	fails_with 64 mt-store stat --memory --prometheus
	fails_with 64 mt-store stat "$RUN" --memory
	fails_with 64 mt-store ls --memory
}

# create as a user of uid 4321 on a machine that runs systemd: with_systemd SHELL-COMMANDS-BEFORE
with_systemd() {
	[ "$(id -u)" = 0 ] || skip "needs root, to become another user"
	need_cmd setpriv
	unshare -m true 2>/dev/null || skip "needs leave to mount (unshare -m)"
	code=0
	# the config comes on stdin: that user may have no access to our directories; systemd removes in /dev/shm alone
	env -u MT_SHM_DIR unshare -m sh -c '
		as_user() { setpriv --reuid 4321 --regid 4321 --clear-groups "$@"; }
		as_user test -x "$1/mt-store" || exit 99
		mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system /run/systemd/logind.conf.d || exit 99
		eval "$3"
		as_user "$1/mt-store" create "$2" --config /dev/stdin --step-tokens 1K
		code=$?
		as_user "$1/mt-store" rm "$2"
		exit $code' sh "$MT" "$RUN" "$1" <"$CONFIGS/demo.json" 2>"$T/err" || code=$?
	[ "$code" != 99 ] || skip "needs leave to mount, and programs that others may run"
	return "$code"
}

@test "create warns if logging out deletes the run, and does not warn if RemoveIPC is off" {
	grep -rqi "^ *RemoveIPC" /etc/systemd/logind.conf* 2>/dev/null && skip "this machine's own logind.conf decides"
	with_systemd :
	grep -q "warning: logging out will delete this run" "$T/err"
	with_systemd 'printf "[Login]\nRemoveIPC = no\n" >/run/systemd/logind.conf.d/10-keep.conf'
	grep -q "parameters" "$T/err"
	[ "$(grep -c warning "$T/err")" = 0 ]
}

@test "rm exits 75 for a run with a live stage, and --force removes it" {
	demo "$RUN"
	spawn serve mt-store serve "$RUN"
	eventually grep -qx ready "$T/serve.out"
	fails_with 75 mt-store rm "$RUN"
	grep -q "mt-store (pid $PID)" "$T/fails.err"
	mt-store rm "$RUN" --force
	gone "$RUN"
	wait "$PID"
}

@test "serve exits 0 on SIGTERM and SIGINT" {
	demo "$RUN"
	for signal in TERM INT; do
		# a shell's background children ignore SIGINT unless it is reset
		spawn serve env --default-signal=INT mt-store serve "$RUN"
		eventually grep -qx ready "$T/serve.out"
		kill "-$signal" "$PID"
		wait "$PID"
		mt-store stat "$RUN" | grep -qx "no stages"
	done
}

@test "serve exits 0 when its regions are deleted by hand" {
	demo "$RUN"
	spawn serve mt-store serve "$RUN"
	eventually grep -qx ready "$T/serve.out"
	rm "$(regions_of "$RUN")".*
	wait "$PID"
}

@test "the stages of a run whose files are deleted by hand end, and serve says why" {
	local stage pid
	demo "$RUN"
	mt-store init "$RUN" --seed 1
	spawn serve mt-store serve "$RUN"
	spawn optim mt-optim "$RUN" --threads 1
	spawn stream mt-stream "$RUN" --threads 1
	spawn ckpt mt-ckpt serve "$RUN" --dir "$T/out"
	mkfifo "$T/records"
	exec 8<>"$T/records"    # mt-step waits for its input
	spawn step sh -c "exec mt-step $RUN --steps 1 --batch 1 --seq 8 --lr 1e-3 <$T/records"
	for stage in store step stream optim ckpt; do eventually stat_has "$RUN" "\"stage\":\"mt-$stage"; done
	rm "$(regions_of "$RUN")".*
	for pid in $(cat "$T/pids"); do
		eventually no kill -0 "$pid"
	done
	exec 8>&-
	grep -qx "mt-store: run '$RUN': its files were deleted: its stages end" "$T/serve.err"
	grep -qx "mt-step: run '$RUN' was removed" "$T/step.err"
}

@test "serve waits for a run that does not exist yet" {
	spawn serve mt-store serve "$RUN"
	sleep 0.2
	[ ! -s "$T/serve.out" ]
	demo "$RUN"
	eventually grep -qx ready "$T/serve.out"
}

@test "a second serve on a run exits 75" {
	demo "$RUN"
	spawn serve mt-store serve "$RUN"
	eventually grep -qx ready "$T/serve.out"
	fails_with 75 mt-store serve "$RUN"
}

@test "a new serve takes over after the old one was killed" {
	demo "$RUN"
	spawn serve mt-store serve "$RUN"
	eventually grep -qx ready "$T/serve.out"
	kill -9 "$PID"
	wait "$PID" || true
	mt-store stat "$RUN" | grep -q "^mt-store .*dead, was: watches"
	spawn again mt-store serve "$RUN"
	eventually grep -qx ready "$T/again.out"
}

# mt-store serve in the background ($PID); descriptor 8 is its owner's end of the pipe
serve_owned() {
	mkfifo "$T/owner"
	exec 8<>"$T/owner"
	mt-store serve "$RUN" --until-eof --dir "$T" <"$T/owner" >"$T/serve.out" 2>"$T/serve.err" 3>&- 8>&- &
	PID=$!
	echo $PID >>"$T/pids"
	eventually grep -qx ready "$T/serve.out"
}

@test "serve --until-eof removes the run when its stdin ends, and not before" {
	demo "$RUN"
	serve_owned
	echo a word is no end >&8
	sleep 0.3
	kill -0 $PID
	exec 8>&-
	wait $PID
	gone "$RUN"
	grep -q "run '$RUN' is removed; it had trained nothing" "$T/serve.err"
	demo "$RUN"
	fails_with 64 mt-store serve "$RUN" --until-eof
	fails_with 64 mt-store serve "$RUN" --dir "$T"
	fails_with 64 mt-store serve "$RUN" --until-eof --dir "$T"      # stdin is /dev/null, so it would end at once
	grep -q "stdin is not a pipe" "$T/fails.err"
	fails_with 64 mt-store stat "$RUN" --until-eof
	no gone "$RUN"
}

@test "serve --until-eof removes a run that is half a step ahead without a save, and says so" {
	demo "$RUN"
	mt-store init "$RUN" --seed 1
	shm-poke "$RUN" half 2
	fails_with 75 mt-ckpt save "$RUN" "$T/save"
	grep -q 'step 1 is half done' "$T/fails.err"
	serve_owned
	exec 8>&-
	wait $PID
	gone "$RUN"
	grep -q 'step 1 was half done (--update early), so only older checkpoints remain' "$T/serve.err"
	[ ! -e "$T/step-00000000" ]
}

@test "serve --until-eof removes the rest of a run whose removal was killed" {
	local file="${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$RUN"
	demo "$RUN"
	for region in control store; do ln "$file.$region" "$file-kept.$region"; done
	mt-store rm "$RUN"
	for region in control store; do mv "$file-kept.$region" "$file.$region"; done
	serve_owned
	wait $PID
	gone "$RUN"
	[ ! -s "$T/serve.err" ]
}

@test "serve --until-eof ends silently when its owner has written that it is over" {
	demo "$RUN"
	serve_owned
	echo over >&8
	exec 8>&-
	wait $PID
	gone "$RUN"
	[ ! -s "$T/serve.err" ]
}

@test "init exits 75 while stages work on the run, but a running serve does not stop it" {
	demo "$RUN"
	spawn serve mt-store serve "$RUN"
	eventually grep -qx ready "$T/serve.out"
	mt-store init "$RUN" --seed 1 2>/dev/null
	spawn hold store-hold "$RUN" 2
	eventually grep -qx held "$T/hold.out"
	fails_with 75 mt-store init "$RUN" --seed 1
	grep -q "mt-optim" "$T/fails.err"
}

@test "serve reports a dead stage once and aborts the accumulation that the stage took part in" {
	demo "$RUN"
	mt-store init "$RUN" --seed 1 2>/dev/null
	spawn serve mt-store serve "$RUN"
	eventually grep -qx ready "$T/serve.out"
	spawn hold store-hold "$RUN" 2 accumulate
	eventually grep -qx held "$T/hold.out"
	stat_is "$RUN" phase '"accumulate"'
	attempt=$(stat_value "$RUN" attempt)
	kill -9 "$PID"
	eventually grep -q "mt-optim (pid $PID) has died" "$T/serve.err"
	eventually stat_is_not "$RUN" attempt "$attempt"
	sleep 0.3
	[ "$(grep -c died "$T/serve.err")" = 1 ]
}

# A stage that takes long to die, since it has much memory, is just being killed
kill_slowly() {
	spawn dying store-hold "$RUN" 2 1024
	eventually grep -qx held "$T/dying.out"
	kill -9 "$PID"
}

# bats test_tags=slow
@test "init, a successor and rm wait for a stage that is being killed" {
	demo "$RUN"
	kill_slowly
	mt-store init "$RUN" --seed 1 2>/dev/null
	kill_slowly
	spawn next store-hold "$RUN" 2
	eventually grep -qx held "$T/next.out"
	end "$PID"
	kill_slowly
	mt-store rm "$RUN"
}

@test "rm right after mt-store create was killed removes what it made" {
	for i in 1 2 3; do
		spawn create mt-store create "$RUN" --config "$CONFIGS/bench-97m.json"
		eventually ls "${MT_SHM_DIR:-/dev/shm}/mt.$(id -u).$RUN.store"
		sleep 0.0$i
		kill -9 "$PID"
		mt-store rm "$RUN"
		gone "$RUN"
	done
}

# bats test_tags=slow
@test "the next create of a name removes what a killed one has left of it, and says so; TERM leaves nothing" {
	local left create="mt-store create $RUN --config $CONFIGS/demo.json"
	for left in control "control rings" "control rings store" rings "rings store"; do
		(cd "$(dirname "$(regions_of "$RUN")")" && for f in $left; do truncate -s 1M "mt.$(id -u).$RUN.$f"; done)
		$create 2>"$T/err"
		mt-store rm "$RUN"
	done
	dd if=/dev/zero of="$(regions_of "$RUN").store" bs=1M count=1 status=none
	$create 2>"$T/err"
	grep -q "^mt-store: run '$RUN': a mt-store create that was killed had made 1048576 bytes of it," "$T/err"
	fails_with 73 $create
	grep -q "run '$RUN' exists already: mt-store rm $RUN removes it$" "$T/fails.err"
	mt-store rm "$RUN"
	: >"$(regions_of "$RUN").control"
	spawn maker python3 "$TOP/tests/lib/region.py" "$(regions_of "$RUN").control" lock
	eventually grep -qx held "$T/maker.out"
	fails_with 73 $create
	grep -q "run '$RUN' is being created by another mt-store$" "$T/fails.err"
	kill -9 "$PID"
	for sig in KILL TERM; do
		spawn create mt-store create "$RUN" --config "$CONFIGS/bench-97m.json"
		eventually ls "$(regions_of "$RUN").store"
		kill -$sig "$PID"
		exits $((128 + $(kill -l $sig))) wait "$PID"
		[ $sig = KILL ] || gone "$RUN"
	done
}

@test "serve prints nothing about a stage that exits normally" {
	demo "$RUN"
	spawn serve mt-store serve "$RUN"
	eventually grep -qx ready "$T/serve.out"
	spawn hold store-hold "$RUN" 2
	eventually grep -qx held "$T/hold.out"
	kill -TERM "$PID"
	wait "$PID"
	sleep 0.3
	[ ! -s "$T/serve.err" ]
}

@test "stat names each stage and its activity, and shows a stopped stage as stopped" {
	demo "$RUN"
	spawn hold store-hold "$RUN" 9
	eventually grep -qx held "$T/hold.out"
	mt-store stat "$RUN" | grep -q "^mt-stream 1 *pid $PID *waits for weights of unit 7; micros 0, "
	kill -STOP "$PID"
	eventually stat_has "$RUN" '"stopped":true'
	mt-store stat "$RUN" | grep -q "^mt-stream 1 .*stopped"
	mt-store stat "$RUN" | grep -q "^rings: batch.1 0 grad.1 0 save 0"
}

@test "the last of 72 slots is mt-stream 63's, in a run with 64 mt-streams; stat, ls, top and rm see who holds it" {
	mt-store create "$RUN" --config "$GOLDEN/llama3/model" --step-tokens 1K --streams 63 2>/dev/null
	fails_with 66 store-hold "$RUN" 71
	grep -q "has no mt-stream 63: it has 63 mt-streams at most" "$T/fails.err"
	mt-store rm "$RUN"
	mt-store create "$RUN" --config "$GOLDEN/llama3/model" --step-tokens 1K --streams 64 2>/dev/null
	spawn hold store-hold "$RUN" 71
	eventually grep -qx held "$T/hold.out"
	fails_with 75 store-hold "$RUN" 71
	mt-store stat "$RUN" | grep -q "^mt-stream 63 *pid $PID *waits for weights of unit 7; micros 0, "
	mt-store stat "$RUN" | grep -q "^rings: batch.63 0 grad.63 0 save 0"
	mt-store stat "$RUN" --prometheus | grep -q 'mt_stage_up{run="[^"]*",stage="mt-stream 63"} 1'
	mt-store ls "$RUN" --json | grep -q "mt-stream 63"
	mt-top "$RUN" --once | grep -q "^mt-stream 63"
	fails_with 75 mt-store rm "$RUN"
	grep -q "mt-stream 63 (pid $PID) is alive" "$T/fails.err"
	end "$PID"
	mt-store rm "$RUN"
}

@test "stat --json prints one object on one line" {
	need_cmd python3
	demo "$RUN"
	mt-store init "$RUN" --seed 1 2>/dev/null
	mt-store stat "$RUN" --json >"$T/stat.json"
	[ "$(wc -l <"$T/stat.json")" = 1 ]
	python3 - "$T/stat.json" "$RUN" <<-'END'
		import json, sys
		stat = json.load(open(sys.argv[1]))
		assert stat["run"] == sys.argv[2] and stat["state"] == "filled" and stat["dtype"] == "bf16", stat
		assert stat["params"] == 4877568 and stat["bytes"] > stat["state_bytes"] > 16 * stat["params"], stat
		assert stat["step"] == 0 and stat["txn"]["phase"] == "logged" and stat["stages"] == [], stat
	END
}

@test "ls prints the user's runs with bytes, step and live stages; with --json one object a line" {
	demo "$RUN"
	demo "${RUN}b"
	mt-store init "$RUN" --seed 1 2>/dev/null
	spawn serve mt-store serve "$RUN"
	eventually grep -qx ready "$T/serve.out"
	mt-store ls >"$T/ls"
	grep -Eq "^$RUN +[0-9]+ +0  filled: mt-store$" "$T/ls"
	grep -Eq "^${RUN}b +[0-9]+ +-  empty$" "$T/ls"
	[ "$(mt-store ls "$RUN" | wc -l)" = 2 ]
	[ "$(mt-store ls "$RUN" --json)" = "{\"run\":\"$RUN\",\"bytes\":$(du -B1 -c "$(regions_of "$RUN")".* |
		tail -1 | cut -f1),\"step\":0,\"state\":\"filled\",\"stages\":[\"mt-store\"]}" ]
}

@test "a closed stdout exits 74" {
	demo "$RUN"
	exits 74 mt-store stat "$RUN" >/dev/full 2>"$T/err"
	[ "$(wc -l <"$T/err")" = 1 ]
}

# bats test_tags=slow
@test "mt-store serve sleeps also where fewer descriptors are allowed than a run has slots" {
	mt-store create "$RUN" --config "$GOLDEN/llama3/model/config.json" 2>"$T/err"
	spawn serve sh -c 'ulimit -n 13; exec mt-store serve "$0"' "$RUN"
	eventually grep -qx ready "$T/serve.out"
	ticks() { awk '{ print $14 + $15 }' "/proc/$PID/stat"; }
	local before
	before=$(ticks)
	sleep 2
	[ $(($(ticks) - before)) -lt 20 ]
	end "$PID"
}

@test "--help and --version print to stdout" {
	mt-store --help | grep -q "^usage: mt-store create RUN --config"
	mt-store --version | grep -Eq "^mt-store [0-9]+\.[0-9]+"
}

@test "an option without what it goes with, a value out of range or no choice exit 64 with what is valid" {
	refuses() { # LINE PROGRAM ARGS...
		local line=$1
		shift
		fails_with 64 "$@"
		grep -qxF "$1: $line" "$T/fails.err"
	}
	refuses "no verb: create, init, serve, stat, ls, rm or ring; see --help" mt-store
	refuses "rm takes no --json" mt-store rm x --json
	refuses "init needs --seed N" mt-store init x
	refuses "--tier-slots goes with --tier" mt-store create x --config x --tier-slots 4
	refuses "--config goes with --check or --count" mt-step x --config x
	refuses "--grad: 'fp16' is not fp32, bf16 or none" mt-store create x --config x --grad fp16
	refuses "--keep: 1 or more" mt-ckpt serve x --dir x --keep 0
	refuses "--wd: 0 or more" mt-step x --wd -1e-9
	refuses "--max-tokens: 1 to 16777216" mt-sample x --max-tokens 0
	refuses "--threads: 1 to 256" mt-tier x --threads 257
	refuses "--grad: 'fp32|bf16' is not fp32, bf16 or none" mt-store create x --config x --grad 'fp32|bf16'
}

# bats test_tags=slow
@test "--help and --version that cannot be written exit 74 with one line" {
	local program option
	for program in mt-store mt-step mt-feed mt-tokens mt-log mt-run mt-plot; do
		for option in --help --version; do
			fails_with 74 sh -c "exec $program $option >/dev/full"
			grep -qx "$program: stdout: \(No space left on device\|cannot be written\)" "$T/fails.err"
			fails_with 74 sh -c "exec $program $option >&-"
		done
	done
}
