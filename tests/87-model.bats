# The protocols of a run on several nodes, of files on drives and of shared words on arm64, as models: tests/model.
load helpers

MODEL=$TOP/tests/model/run

# bats test_tags=nightly
@test "two nodes: the protocol holds in all states of the model, and without a rule Spin finds an error" {
	need_cmd spin
	need_cmd cc
	run "$MODEL" WAIT_FOR_COMMIT EVAL_REPORT
	[ "$status" = 0 ] || { echo "$output" >&2; false; }
	[ "$(grep -c '^ok: all rules' <<<"$output")" = 2 ]
	[ "$(grep -c '^ok: without ' <<<"$output")" = 2 ]
}

# bats test_tags=nightly
@test "files on drives: the protocol holds in all states of the model, and without a rule Spin finds an error" {
	need_cmd spin
	need_cmd cc
	run "$MODEL" RESTORE_BOUND IO_ENDED LATE_LOOK
	[ "$status" = 0 ] || { echo "$output" >&2; false; }
	[ "$(grep -c '^ok: all rules' <<<"$output")" = 5 ]
	[ "$(grep -c '^ok: without ' <<<"$output")" = 3 ]
}

@test "arm64: no litmus test has its unwanted outcome, and with anything in it weakened herd7 finds it" {
	need_cmd herd7
	run "$TOP/tests/model/litmus/run"
	[ "$status" = 0 ] || { echo "$output" >&2; false; }
	[ "$(grep -c '^ok: .* Never)' <<<"$output")" = 6 ]
	[ "$(grep -c '^ok: .* without .* Sometimes)' <<<"$output")" -ge 6 ]
}

@test "the model check without spin exits 69 with one line that says what to install" {
	mkdir "$T/empty"
	fails_with 69 env PATH="$T/empty" /bin/sh "$MODEL"
	grep -q 'apt-get install spin gcc' "$T/fails.err"
}

@test "the model check without a rule that it does not know exits 64" {
	need_cmd spin
	fails_with 64 "$MODEL" NO_SUCH_RULE
}
