# Stages are killed, stopped or sent SIGTERM, one by one and all at once, and restarted by the same commands: the run
# ends with the bits of an undisturbed run. tests/crash/crash.py describes how. Longer, by hand:
#     tests/crash/crash.py --seconds 600
#     tests/crash/crash.py --takeovers 2000
# mt-run's own processes, and signals to it: tests/crash/runs.py --faults 300
# bats file_tags=slow
load helpers

storm() {
	python3 "$TOP/tests/crash/crash.py" --faults "${MT_CRASH_FAULTS:-20}" --seconds "${MT_CRASH_SECONDS:-0}" \
		--seed "$MT_CRASH_SEED" "$@"
}

setup_file() { export MT_CRASH_SEED=${MT_CRASH_SEED:-$RANDOM}; echo "# seed $MT_CRASH_SEED" >&3; }

# bats test_tags=nightly
@test "fp32, one stream, several micro-batches: kills at random moments change no bit" { storm fp32; }
@test "fp32, two streams, two optimizer threads: kills at random moments change no bit" { storm fp32-streams; }
@test "bf16 with checkpoints: kills at random moments change no bit of weights and checkpoints" { storm bf16; }
# bats test_tags=nightly
@test "bf16 gradients, two streams, concat: kills at random moments change no bit" { storm bf16-grad; }
# bats test_tags=nightly
@test "tied embeddings, two streams, evaluations: kills at random moments change no bit" { storm tied; }
# bats test_tags=nightly
@test "evaluation at every second step: kills at random moments change no metric" { storm eval; }
@test "--grad none: kills at random moments change no bit, or the run is dirty and continues from its checkpoint" {
	storm none
}
# bats test_tags=nightly
@test "--grad none, tied, two streams: kills change no bit, or the run is dirty and continues from its checkpoint" {
	storm none-tied
}
# bats test_tags=nightly
@test "int8 state, two optimizer threads: kills at random moments change no bit" { storm int8; }
# bats test_tags=nightly
@test "Lion with bf16 state, two streams: kills at random moments change no bit" { storm lion; }
# bats test_tags=nightly
@test "--grad none, SGD with int8 state: kills change no bit, or the run is dirty and continues from its checkpoint" {
	storm none-sgd
}
# bats test_tags=nightly
@test "experts by windows, two streams: kills at random moments change no bit" { storm windows; }
# bats test_tags=nightly
@test "gated DeltaNet, two streams: kills at random moments change no bit" { storm hybrid; }
# bats test_tags=nightly
@test "MLA and exact routers, two streams: kills at random moments change no bit" { storm mla; }
# bats test_tags=nightly
@test "Mamba 2, layers of one half, two streams: kills at random moments change no bit" { storm halves; }
# bats test_tags=nightly
@test "Mamba 2 beside attention: kills at random moments change no bit" { storm beside; }
# bats test_tags=nightly
@test "blocks' own inputs, shared k and v, two streams: kills at random moments change no bit" { storm shared; }
@test "dpo on pairs, two streams, evaluations: kills at random moments change no bit" { storm pairs; }
@test "multi-token prediction behind latents and experts: kills at random moments change no bit" { storm mtp; }
@test "frozen parts, two streams, evaluations: kills at random moments change no bit" { storm frozen; }
# bats test_tags=nightly
@test "frozen parts, state in files, --update early: kills at random moments change no bit" { storm frozen-early; }
# bats test_tags=nightly
@test "--grad none, frozen parts: kills change no bit, or the run is dirty and continues from its checkpoint" {
	storm frozen-none
}
@test "three streams that reorder all that events allow, evaluations: kills at random moments change no bit" {
	storm chaos-3
}

@test "--update early, two streams, evaluations: kills at random moments change no bit" { storm early; }
# bats test_tags=nightly
@test "--update early, tied, bf16 gradients, int8 state: kills at random moments change no bit" { storm early-tied; }
@test "--update early, experts by windows, two streams: kills at random moments change no bit" { storm early-windows; }

# bats test_tags=nightly
@test "state in files, two streams: kills at random moments change no bit of weights, files and checkpoints" {
	storm tier
}
@test "state in files in three directories, evaluations: kills at random moments change no bit" { storm tier-eval; }
# bats test_tags=nightly
@test "int8 state in files in two directories: kills change no bit of weights and checkpoints" { storm tier-int8; }
# bats test_tags=nightly
@test "--grad none, state in files: kills change no bit, or the run is dirty and continues from its checkpoint" {
	storm tier-none
}
# bats test_tags=nightly
@test "--update early, state in files: kills at random moments change no bit" { storm tier-early; }

# bats test_tags=slow
@test "stop, replace, few descriptors, another PID namespace, a lying lock: no stage takes the slot of a live one" {
	for c in $(some 2 bf16 tied none tier); do
		storm $c --how replace,fds,ns,lied,pause --faults "${MT_CRASH_FAULTS:-10}"
	done
}

@test "mt-run's program, script, keeper and mt-store killed in any order, signals while a stage hangs: the same bits" {
	python3 "$TOP/tests/crash/runs.py" --faults "${MT_CRASH_FAULTS:-12}" --seed "$MT_CRASH_SEED"
}

phase_is() { mt-store stat "$RUN" --json | grep -q "\"phase\": *\"$1\""; }
activity_is() { mt-store stat "$RUN" | grep -q "$1"; }

@test "--grad none: a stream that gets SIGTERM after the commit sends the rest first, even if mt-step is dead" {
	mt-store create "$RUN" --config "$CONFIGS/demo.json" --grad none --step-tokens 4K 2>"$T/create.err"
	mt-store init "$RUN" --seed 1
	start_stages
	mt-feed --bytes --epochs 9 "$GOLDEN/llama3/data.bin" >"$T/data"
	spawn step sh -c 'exec mt-step "$0" --steps 1 --batch 16 --seq 256 --lr 1e-3 <"$1"' "$RUN" "$T/data"
	local step=$PID
	eventually phase_is apply
	kill -STOP "$OPTIM"
	eventually activity_is 'waits for room in its gradient ring'
	phase_is apply
	kill -9 "$step"
	kill "$STREAM"
	sleep 0.3
	kill -0 "$STREAM"
	kill -CONT "$OPTIM"
	exits 0 wait "$STREAM"
	eventually phase_is done
	state_of "$RUN" | grep -q '^state 2$'
}

@test "a saver that dies over a sealed save and is not replaced is reported after --wait: exit 69" {
	make_run "$GOLDEN/llama3/model"
	start_stages
	spawn ckpt mt-ckpt serve "$RUN" --dir "$T/ck"
	local saver=$PID
	saver_is_there() { mt-store stat "$RUN" --json | grep -q '"mt-ckpt"'; }
	eventually saver_is_there
	kill -STOP "$saver"
	ckpt-snap "$RUN" 1000 seal
	spawn step sh -c \
		'exec timeout 30 mt-step "$0" --steps 4 --batch 4 --seq 32 --lr 1e-3 --ckpt-every 2 --wait 1 <"$1"' \
		"$RUN" "$GOLDEN/llama3/data.bin"
	local step=$PID
	eventually grep -q '"step": 1' "$T/step.out"
	kill -0 "$step"                 # mt-step waits for a stopped saver
	kill -9 "$saver"
	exits 69 wait "$step"
	grep -q 'mt-ckpt is dead' "$T/step.err"
}
