# shellcheck shell=bash
# Single steps between stream-drive and an mt-stream, for suites that compare what mt-stream sends.

EMU=$BUILD/emu/mt-stream
need_emulator() { [ -x "$EMU" ] || skip "built without a C++ compiler, or with sanitizers"; }

# Replace the run by one with random weights: make_run MODEL [DTYPE GRAD], else $DTYPE and $GRAD
make_run() {
	mt-store rm "$RUN" 2>/dev/null || true
	stream-drive make "$RUN" "$GOLDEN/$1/model" "${2:-$DTYPE}" "${3:-$GRAD}" 1024 7
}
DTYPE=fp32 GRAD=fp32

# $T/latent-DIM/model: the config of multi-head latent attention whose heads have DIM elements, of which 16 turn, and
# DIM_V of v: latent_heads DIM DIM_V
latent_heads() {
	mkdir -p "$T/latent-$1/model"
	sed -e 's/"qk_head_dim": [0-9]*/"qk_head_dim": '"$1/" -e 's/"\(head_dim\|qk_rope_head_dim\)": [0-9]*/"\1": 16/' \
		-e 's/"qk_nope_head_dim": [0-9]*/"qk_nope_head_dim": '"$(($1 - 16))/" \
		-e 's/"v_head_dim": [0-9]*/"v_head_dim": '"$2/" "$GOLDEN/deepseek-v3/model/config.json" \
		>"$T/latent-$1/model/config.json"
}

# $T/fp8/model: llama3's config with four blocks, of which two compute in FP8, and an MLP whose width FP8 takes
fp8_model() {
	mkdir -p "$T/fp8/model"
	sed -e 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 4/' \
		-e 's/"intermediate_size": [0-9]*/"intermediate_size": 48/' "$GOLDEN/llama3/model/config.json" \
		>"$T/fp8/model/config.json"
	GOLDEN=$T
}

# Write one step's losses and gradients by mt-streams, which end then: step_by OUT "PIDS" STREAM-DRIVE'S ARGUMENTS...
step_by() {
	stream-drive step "$RUN" "${@:3}" 3>&- | sort >"$T/$1"
	[ "${PIPESTATUS[0]}" = 0 ]
	end $2
	grep -q loss "$T/$1"
}

# Write one step's losses and gradients of a fresh run, computed by STREAMS mt-streams, to OUT:
# streams_step OUT "MT-STREAM'S OPTIONS" STREAMS ROWS SEQ MICROS [WORDS...]
streams_step() {
	local out=$1 options=$2 streams=$3 i pids=
	for i in $(seq "$streams"); do
		spawn "stream$i" mt-stream "$RUN" --chunk-tokens 48 --head-tokens 40 $options
		pids="$pids $PID"
	done
	step_by "$out" "$pids" "$4" "$5" "$6" "$streams" 3 "${@:7}"
}

same() { cmp "$T/$1" "$T/$2" || { diff "$T/$1" "$T/$2" | head -5 >&2; return 1; }; }

# The gradients of two steps differ by at most BOUND of their norm: near A B BOUND
near() {
	python3 - "$T/$1.bin" "$T/$2.bin" "$3" <<-'PY'
		import array, math, sys
		a, b = (array.array("f", open(f, "rb").read()) for f in sys.argv[1:3])
		assert len(a) == len(b) and any(a)
		norm = math.sqrt(sum(x * x for x in a))
		error = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))
		print(error / norm)
		assert error <= float(sys.argv[3]) * norm, error / norm
	PY
}
