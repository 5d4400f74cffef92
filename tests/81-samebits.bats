# Nothing of this may change a bit: recompute, the number of threads and streams, the optimizer's instruction set, and
# whether a run was stopped, saved, removed, loaded and continued. Each test runs the whole pipeline.
load helpers

ARGS=(--steps 40 --batch 4 --micro 1 --seq 24 --lr 0.003 --warmup 5 --schedule cosine --wd 0.1 --eps 1e-5 --clip 1)

TIED=qwen3             # golden model with tied embeddings

# Train a fresh run of golden model $1 from its weights: train NAME MODEL CREATE-OPTIONS... -- STEP-OPTIONS...
# STREAM_OPTS, OPTIM_OPTS and STREAMS are the stages' options and number. Leaves $T/NAME.state and $T/NAME.metrics.
train() {
	local name=$1 model=$GOLDEN/$2/model create=()
	shift 2
	while [ "$1" != -- ]; do create+=("$1"); shift; done
	shift
	RUN=$(mt_run_name "$name")
	make_run "$model" --step-tokens 4K "${create[@]}"
	stages
	feed | mt-step "$RUN" $(with "${ARGS[*]}" "$@") >"$T/$name.metrics" 2>"$T/$name.err"
	state_of "$RUN" >"$T/$name.state"
	end_stages
}

# all its tokens are in every golden model's vocabulary
feed() { mt-feed --epochs 8 --shuffle 1 "$GOLDEN/llama3/data.bin"; }

stages() {
	local i
	for i in $(seq "${STREAMS:-1}"); do
		spawn "$RUN.stream$i" mt-stream "$RUN" $(with "--device cpu --threads 1" ${STREAM_OPTS:-})
	done
	spawn "$RUN.optim" mt-optim "$RUN" ${OPTIM_OPTS:---threads 1}
}

end_stages() { mt-store rm "$RUN" --force; }

same() { # NAME NAME
	[ "$(wc -l <"$T/$1.metrics")" -ge 40 ]
	diff "$T/$1.state" "$T/$2.state"
	diff <(timeless "$T/$1.metrics") <(timeless "$T/$2.metrics")
}

# bats test_tags=slow
@test "full recompute and no recompute give the same bits" {
	for dtype in fp32 bf16; do
		STREAM_OPTS="--threads 1 --recompute full" train "full$dtype" llama3 --dtype "$dtype" --
		STREAM_OPTS="--threads 1 --recompute none" train "none$dtype" llama3 --dtype "$dtype" --
		same "full$dtype" "none$dtype"
	done
}

# bats test_tags=slow
@test "the bits are the same whatever MT_WITHOUT leaves out, on the devices cpu and chaos" {
	local compute="--threads 1 --compute fp32"
	STREAM_OPTS=$compute train all llama3 --dtype bf16 --
	for without in slots prefetch grads pieces update; do
		MT_WITHOUT=$without STREAM_OPTS=$compute train "$without" llama3 --dtype bf16 --
		same all "$without"
	done
	MT_WITHOUT=slots,prefetch,grads,pieces,update STREAM_OPTS="$compute --device chaos:7" train chaos llama3 \
		--dtype bf16 --
	same all chaos
}

# bats test_tags=slow
@test "mt-optim with one thread, two and five, and its scalar reference, give the same bits" {
	for grad in fp32 bf16; do
		OPTIM_OPTS="--threads 1" train "one$grad" llama3 --dtype bf16 --grad "$grad" --
		OPTIM_OPTS="--threads 2" train "two$grad" llama3 --dtype bf16 --grad "$grad" --
		OPTIM_OPTS="--threads 5" train "five$grad" llama3 --dtype bf16 --grad "$grad" --
		MT_ISA=scalar train "scalar$grad" llama3 --dtype bf16 --grad "$grad" --
		same "one$grad" "two$grad"
		same "one$grad" "five$grad"
		same "one$grad" "scalar$grad"
	done
	# the comparison finds differences
	if same onefp32 onebf16 >/dev/null; then return 1; fi
}

@test "mt-stream with one thread and three gives the same bits" {
	STREAM_OPTS="--threads 1" train one "$TIED" --dtype bf16 --
	STREAM_OPTS="--threads 3" train three "$TIED" --dtype bf16 --
	same one three
}

# bats test_tags=slow
@test "one stream, two and three give the same bits" {
	for dtype in fp32 bf16; do
		STREAMS=1 train "one$dtype" llama3 --dtype "$dtype" --
		STREAMS=2 train "two$dtype" llama3 --dtype "$dtype" --
		STREAMS=3 train "three$dtype" llama3 --dtype "$dtype" --
		same "one$dtype" "two$dtype"
		same "one$dtype" "three$dtype"
	done
}

# bats test_tags=slow
@test "tied embeddings: one stream and two give the same bits" {
	for grad in fp32 bf16; do
		STREAMS=1 train "one$grad" "$TIED" --dtype bf16 --grad "$grad" --
		STREAMS=2 train "two$grad" "$TIED" --dtype bf16 --grad "$grad" --
		same "one$grad" "two$grad"
	done
}

# bats test_tags=slow
@test "the cpu device and chaos, which reorders all that events allow, give the same bits" {
	train cpu llama3 --dtype bf16 --
	STREAM_OPTS="--threads 1 --device chaos:7" train chaos llama3 --dtype bf16 --
	same cpu chaos
}

# Compare 40 steps in one go with 20 steps, save, rm, load and the same command again: the later metrics and the whole
# state must be equal. The runs' names differ, which changes no bit.
halves() { # NAME MODEL CREATE-OPTIONS... -- STEP-OPTIONS...
	local name=$1 model=$2 create=() step
	shift 2
	while [ "$1" != -- ]; do create+=("$1"); shift; done
	shift
	train "$name" "$model" "${create[@]}" -- "$@"
	RUN=$(mt_run_name cut)
	make_run "$GOLDEN/$model/model" --step-tokens 4K "${create[@]}"
	stages
	feed | mt-step "$RUN" $(with "${ARGS[*]}" "$@" --until 20) >"$T/cut.metrics" 2>"$T/cut.err"
	mt-ckpt save "$RUN" "$T/$name.saved"
	end_stages
	mt-store create "$RUN" --config "$T/$name.saved" --step-tokens 4K "${create[@]}"
	mt-ckpt load "$RUN" "$T/$name.saved"
	stages
	feed | mt-step "$RUN" $(with "${ARGS[*]}" "$@") >>"$T/cut.metrics" 2>>"$T/cut.err"
	state_of "$RUN" >"$T/cut.state"
	end_stages
	same "$name" cut
	rm -r "$T/$name.saved"
}

# bats test_tags=slow
@test "a run stopped, saved, removed, loaded and continued gives the same bits: fp32" {
	halves fp32 llama3 --dtype fp32 --
}
# bats test_tags=slow
@test "a run stopped, saved, removed, loaded and continued gives the same bits: bf16" {
	halves bf16 llama3 --dtype bf16 --
}
# bats test_tags=slow
@test "a run stopped, saved, removed, loaded and continued gives the same bits: tied, --grad bf16, two streams" {
	STREAMS=2 halves tied "$TIED" --dtype bf16 --grad bf16 -- --pack concat
}
# bats test_tags=slow
@test "a run stopped, saved, removed, loaded and continued gives the same bits: --grad none" {
	halves direct llama3 --dtype bf16 --grad none -- --clip 0 --micro 4
}
# bats test_tags=slow
@test "a run saved, removed, loaded and continued by other threads, streams and instructions gives the same bits" {
	local whole=$T/whole.saved
	train whole llama3 --dtype bf16 --
	RUN=$(mt_run_name cut)
	make_run "$GOLDEN/llama3/model" --step-tokens 4K --dtype bf16
	stages
	feed | mt-step "$RUN" "${ARGS[@]}" --until 20 >"$T/cut.metrics" 2>"$T/cut.err"
	mt-ckpt save "$RUN" "$whole"
	end_stages
	make_run "$whole" --step-tokens 4K --dtype bf16
	STREAMS=2 STREAM_OPTS="--threads 2 --recompute full" OPTIM_OPTS="--threads 3" MT_ISA=scalar stages
	feed | mt-step "$RUN" "${ARGS[@]}" >>"$T/cut.metrics" 2>>"$T/cut.err"
	state_of "$RUN" >"$T/cut.state"
	end_stages
	same whole cut
}
