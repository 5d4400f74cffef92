# mt-log passes metrics through and logs them.
load helpers

setup_file() {
	# Print all scalars that TensorBoard reads from DIR, a line each: tag step value
	cat >"$BATS_FILE_TMPDIR/scalars.py" <<-'PY'
	import sys
	from tensorboard.backend.event_processing.event_accumulator import EventAccumulator, SCALARS
	events = EventAccumulator(sys.argv[1], size_guidance={SCALARS: 0}).Reload()
	for tag in sorted(events.Tags()["scalars"]):
	    for e in events.Scalars(tag):
	        print(tag, e.step, "%.7g" % e.value)
	PY
	# A module wandb that writes its calls to $CALLS
	mkdir "$BATS_FILE_TMPDIR/fake"
	cat >"$BATS_FILE_TMPDIR/fake/wandb.py" <<-'PY'
	import json, os
	def call(name, /, *args, **options):
	    with open(os.environ["CALLS"], "a") as f:
	        print(name, json.dumps(args), json.dumps(options, sort_keys=True), file=f)
	class Run:
	    def define_metric(self, *a, **k): call("define_metric", *a, **k)
	    def finish(self, *a, **k): call("finish", *a, **k)
	    def log(self, values):
	        if os.environ.get("FAIL"): raise RuntimeError("the network is gone")
	        call("log", values)
	def init(**options):
	    if not os.environ.get("QUIET"): print("a greeting on stdout")
	    if os.environ.get("FAIL") == "init": raise RuntimeError("no login")
	    call("init", **options)
	    return Run()
	PY
}

log() { "$PYTHON" "$MT/mt-log" "$@" 2>"$T/log.err"; }
wandb() { CALLS=$T/calls PYTHONPATH=$BATS_FILE_TMPDIR/fake log --wandb llms "$@"; }
need_tensorboard() { has tensorboard || skip "needs tensorboard (make venv)"; }
scalars() { "$PYTHON" "$BATS_FILE_TMPDIR/scalars.py" "$@" 2>"$T/scalars.err"; }
line() { # STEP LOSS TIME
	printf '{"step": %s, "loss": %s, "grad_norm": 1.5, "lr": 1e-05, "tokens": 64, "tokens_per_s": 6.5, ' "$1" "$2"
	printf '"time_s": %s, "skipped": false}\n' "$3"
}

@test "TensorBoard reads back every value, and the lines pass through unchanged" {
	need_tensorboard
	{
		echo '{"step": 0, "eval_loss": 5.5}'
		line 1 5.25 0.5
		printf '{"step":2,"loss":null,"grad_norm":null,"lr":0,"tokens":64,"skipped":true,'
		echo '"eval_loss":4.75,"new":-3e2,"s":"x"}'
		printf '{"step": 3, "loss": 4}'
	} >"$T/in"
	log --tensorboard "$T/tb" <"$T/in" >"$T/out"
	cmp "$T/in" "$T/out"
	[ ! -s "$T/log.err" ]
	scalars "$T/tb" >"$T/got"
	diff - "$T/got" <<-'WANT'
	eval/loss 0 5.5
	eval/loss 2 4.75
	train/grad_norm 1 1.5
	train/learning_rate 1 1e-05
	train/learning_rate 2 0
	train/loss 1 5.25
	train/loss 3 4
	train/new 2 -300
	train/skipped 1 0
	train/skipped 2 1
	train/time_s 1 0.5
	train/tokens 1 64
	train/tokens 2 64
	train/tokens_per_s 1 6.5
	WANT
}

@test "rewards, margins, accuracies and clipped ratios have the names of TRL" {
	{
		printf '{"step": 1, "loss": 0.5, "reward_chosen": 0.25, "reward_rejected": -0.5, "margin": 0.75, '
		echo '"accuracy": 1, "eval_loss": 0.6, "eval_accuracy": 0.5, "eval_margin": 0.125}'
		echo '{"step": 2, "loss": 0.5, "clip_fraction": 0.25, "kl": null}'
	} >"$T/in"
	wandb <"$T/in" >"$T/out"
	want='"train/loss": 0.5, "train/rewards/chosen": 0.25, "train/rewards/rejected": -0.5, '
	want+='"train/rewards/margins": 0.75, "train/rewards/accuracies": 1.0, "eval/loss": 0.6, '
	want+='"eval/rewards/accuracies": 0.5, "eval/rewards/margins": 0.125'
	grep -qxF 'log [{"train/global_step": 1, '"$want"'}] {}' "$T/calls"
	grep -qxF 'log [{"train/global_step": 2, "train/loss": 0.5, "train/clip_ratio/region_mean": 0.25}] {}' "$T/calls"
}

@test "a step that comes again is logged once if it is equal; if it differs, TensorBoard shows the new steps only" {
	need_tensorboard
	{ line 1 5 1; line 2 4 1; line 3 3 1; line 4 2 1; line 2 4 1; line 3 3.5 1; line 4 2 1; line 5 1 1; } >"$T/in"
	log --tensorboard "$T/tb" <"$T/in" >"$T/out"
	cmp "$T/in" "$T/out"
	[ "$(scalars "$T/tb" | grep train/loss | tr '\n' ' ')" = \
		"train/loss 1 5 train/loss 2 4 train/loss 3 3.5 train/loss 4 2 train/loss 5 1 " ]
	CALLS=$T/calls
	wandb <"$T/in" >"$T/out"
	[ "$(grep -c ^log "$T/calls")" = 7 ]
}

# bats test_tags=slow
@test "a second mt-log on the same directory replaces the steps that it logs again" {
	need_tensorboard
	{ line 1 5 1; line 2 4 1; line 3 3 1; } | log --tensorboard "$T/tb" >"$T/out"
	first=$(ls "$T/tb")
	# as if another process had made it in the second in which the next one begins, with a pid that sorts after its own
	mv "$T/tb/$first" "$T/tb/events.out.tfevents.$(($(date +%s) + 3)).host.99999999.0"
	{ line 2 4.5 1; line 3 3.5 1; } | log --tensorboard "$T/tb" >"$T/out"
	[ "$(ls "$T/tb" | wc -l)" = 2 ] && [ -n "$first" ]
	[ "$(scalars "$T/tb" | grep train/loss | tr '\n' ' ')" = "train/loss 1 5 train/loss 2 4.5 train/loss 3 3.5 " ]
}

@test "a line is on stdout and in the event file before the next one comes" {
	need_tensorboard
	mkfifo "$T/in"
	exec 8<>"$T/in"
	spawn log sh -c 'exec "$@" <"$0" 8>&-' "$T/in" "$PYTHON" "$MT/mt-log" --tensorboard "$T/tb"
	line 1 5.25 1 >&8
	eventually grep -q 5.25 "$T/log.out"
	logged() { scalars "$T/tb" | grep -qx 'train/loss 1 5.25'; }
	eventually logged
	kill -INT "$PID"                            # the first is ignored: a line is still to come
	line 2 4 1 >&8
	exec 8>&-
	wait "$PID"
	[ "$(wc -l <"$T/log.out")" = 2 ]
}

@test "lines that are not metrics pass through unchanged and are counted" {
	{ line 1 5 1; printf 'no JSON\n\n{"loss": 3}\n[1]\n\377\000\n{"step": true}\n{"step": 1e3}\n'; line 2 4 1
		printf '{"step": 3, "lo'; } >"$T/in"
	wandb <"$T/in" >"$T/out"
	cmp "$T/in" "$T/out"
	[ "$(grep ^mt-log "$T/log.err")" = "mt-log: 7 lines are not metrics: passed through, not logged" ]
	[ "$(grep -c ^log "$T/calls")" = 2 ]
}

@test "wandb gets project, name, and each line's numbers with its step; its output is not among the metrics" {
	{ line 1 5.25 0.5; echo '{"step": 2, "loss": null, "eval_loss": 4}'; } >"$T/in"
	wandb --name "a run" <"$T/in" >"$T/out"
	cmp "$T/in" "$T/out"
	grep -q "a greeting" "$T/log.err"
	grep -qxF 'init [] {"name": "a run", "project": "llms"}' "$T/calls"
	grep -qxF 'define_metric ["*"] {"step_metric": "train/global_step"}' "$T/calls"
	grep -qF 'log [{"train/global_step": 1, "train/loss": 5.25, "train/grad_norm": 1.5, "train/learning_rate": 1e-05,' \
		"$T/calls"
	grep -qxF 'log [{"train/global_step": 2, "eval/loss": 4.0}] {}' "$T/calls"
	[ "$(tail -n 1 "$T/calls")" = "finish [] {}" ]
}

@test "a log that fails is reported once, the lines still pass through, and the exit code is 74" {
	{ line 1 5 1; line 2 4 1; } >"$T/in"
	FAIL=1 exits 74 wandb <"$T/in" >"$T/out"
	cmp "$T/in" "$T/out"
	[ "$(grep -c 'mt-log: Wandb: the network is gone: logs nothing more there' "$T/log.err")" = 1 ]
	FAIL=init exits 78 wandb <"$T/in" >"$T/out"
	grep -q 'mt-log: wandb: no login' "$T/log.err"
}

# bats test_tags=slow
@test "when stdout's reader has closed, or stdout is full, all lines are still logged: exit 0, or 74" {
	for i in $(seq 2000); do line "$i" 5 1; done >"$T/in"
	set +e
	wandb <"$T/in" | head -n 1 >"$T/out"
	status=${PIPESTATUS[0]}
	set -e
	[ "$status" = 0 ]
	[ "$(grep -c ^log "$T/calls")" = 2000 ]
	[ "$(grep -c 'stdout: Broken pipe: no more metrics there, logging goes on' "$T/log.err")" = 1 ]
	rm "$T/calls"
	exits 74 wandb <"$T/in" >/dev/full
	[ "$(grep -c ^log "$T/calls")" = 2000 ]
}

@test "when nobody reads the messages, all lines still pass through: exit 0" {
	{ echo none; line 1 5 1; } >"$T/in"
	QUIET=1 CALLS=$T/calls PYTHONPATH=$BATS_FILE_TMPDIR/fake \
		"$PYTHON" "$MT/mt-log" --wandb llms <"$T/in" >"$T/out" 2> >(exec true)
	cmp "$T/in" "$T/out"
	[ "$(grep -c ^log "$T/calls")" = 1 ]
}

@test "invalid options exit 64; a package that is missing is named, with what to install: exit 78" {
	fails_with 64 mt-log
	fails_with 64 mt-log --what
	fails_with 64 mt-log --name x --tensorboard "$T/tb"
	mkdir "$T/without"
	for package in tensorboard wandb; do
		echo "raise ImportError('none here')" >"$T/without/$package.py"
		PYTHONPATH=$T/without fails_with 78 "$PYTHON" "$MT/mt-log" --$package "$T/x"
		grep -q "pip install $package" "$T/fails.err"
	done
	[ ! -e "$T/x" ]
}

@test "a directory that cannot be made exits 74 before a line is read" {
	need_tensorboard
	: >"$T/file"
	fails_with 74 "$PYTHON" "$MT/mt-log" --tensorboard "$T/file/tb"
}
