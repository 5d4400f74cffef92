# Losses of documents: clipped policy gradients and preferences.
load helpers

@test "invalid options of losses exit 64, and so do those of another loss" {
	refused() { # WORDS OPTIONS...
		fails_with 64 mt-step r --check --steps 1 --batch 1 --seq 8 --lr 1 "${@:2}"
		grep -qF -- "$1" "$T/fails.err" || { cat "$T/fails.err"; return 1; }
		fails_with 64 mt-step --count --batch 1 --seq 8 "${@:2}"
	}
	refused "--loss: 'kto' is not nll, pg, dpo, simpo or orpo" --loss kto
	refused "--loss: '' is not" --loss ''
	refused "--beta goes with --loss dpo, simpo or orpo" --beta 0.1
	refused "--beta goes with" --loss pg --beta 0.1
	refused "--gamma goes with --loss simpo" --loss dpo --gamma 1
	refused "--clip-low goes with --loss pg" --loss dpo --clip-low 0.1
	refused "--clip-high goes with --loss pg" --clip-high 0.1
	for x in 0 -1; do refused "--beta: above 0" --loss dpo --beta $x; done
	for x in nan inf x; do refused "--beta" --loss simpo --beta $x; done
	refused "--gamma: 0 or more" --loss simpo --gamma -0.1
	for x in -0.1 1.1; do refused "--clip-low: 0 to 1" --loss pg --clip-low $x; done
	refused "--clip-high: 0 or more" --loss pg --clip-high -1
	for loss in pg dpo simpo orpo; do refused "--pack concat cuts the input anywhere" --loss $loss --pack concat; done
	for how in "" "nll" "pg" "pg --clip-low 0 --clip-high 5" "dpo --beta 1" "simpo --beta 10 --gamma 0" "orpo"; do
		mt-step r --check --steps 1 --batch 1 --seq 8 --lr 1 ${how:+--loss $how}
	done
	for loss in "dpo --beta 0" "dpo --clip-low 0.1" "kto"; do
		fails_with 64 mt-run --model "$GOLDEN/llama3/model" --data "$GOLDEN/llama3/data.bin" --out "$T/out" --steps 1 \
			--batch 1 --seq 8 --lr 1 --loss $loss
	done
	[ ! -e "$T/out" ]
}

# ---- objective.c ----

@test "losses, rewards and derivatives of extreme log-probabilities, too, are autograd's in fp64 to 1e-12" {
	stream-objective "$GOLDEN/objectives.txt" >"$T/out" || { cat "$T/out"; return 1; }
	[ "$(tail -n 1 "$T/out")" = "$(grep -c . "$GOLDEN/objectives.txt") lines" ]
	[ "$(cut -d ' ' -f 1 "$GOLDEN/objectives.txt" | sort -u | tr '\n' ' ')" = "dpo orpo pg simpo " ]
}

@test "objectives by rows: swapped sides negate margins, the policy as its reference gives ln 2, NaN stays visible" {
	stream-objective
}
