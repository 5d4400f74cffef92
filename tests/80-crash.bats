# Stages are killed, stopped, told to go, all at once and one by one, and come back with the same command line: what is
# trained is what an undisturbed run trains, to the last bit. tests/crash/crash.py says how; a longer storm by hand:
#     tests/crash/crash.py --seconds 600
load helpers

storm() { python3 "$TOP/tests/crash/crash.py" --blows "${MT_CRASH_BLOWS:-25}" --seconds "${MT_CRASH_SECONDS:-0}" "$@"; }

setup_file() { export MT_CRASH_SEED=${MT_CRASH_SEED:-$RANDOM}; echo "# seed $MT_CRASH_SEED" >&3; }

@test "fp32, one stream, several micro-batches: killed at any instant, the same bits come out" { storm fp32 --seed "$MT_CRASH_SEED"; }
@test "fp32, two streams, two optimizer threads: killed at any instant, the same bits come out" { storm fp32-streams --seed "$MT_CRASH_SEED"; }
@test "bf16 with checkpoints: killed at any instant, the same bits and checkpoints come out" { storm bf16 --seed "$MT_CRASH_SEED"; }
@test "bf16 gradients, two streams, concat: killed at any instant, the same bits come out" { storm bf16-grad --seed "$MT_CRASH_SEED"; }
@test "tied embeddings, two streams, evaluations: killed at any instant, the same bits come out" { storm tied --seed "$MT_CRASH_SEED"; }
@test "evaluation at every second step: killed at any instant, the same metrics come out" { storm eval --seed "$MT_CRASH_SEED"; }
@test "grad none: killed at any instant, the same bits come out, or the run is dirty and goes on from its checkpoint" { storm none --seed "$MT_CRASH_SEED"; }
@test "grad none, tied, two streams: the same" { storm none-tied --seed "$MT_CRASH_SEED"; }
