# mt-tokens -o FILE: FILE is there when it is whole, or not at all.
load helpers

documents() { seq -f '{"text": "document %.0f"}' "$1"; }
nothing_beside() { [ "$(cd "$T" && ls -d chats.rec*)" = "${1:-}" ]; }  # what is at chats.rec or named like it

setup_file() { export TOKENS="$MT/mt-tokens --bytes"; }

# bats test_tags=slow
@test "-o FILE gets the bytes that stdout would get, also of --decode, and stdout gets none" {
	documents 600 >"$T/in"
	$TOKENS "$T/in" >"$T/want" 2>"$T/err"
	$TOKENS "$T/in" -o "$T/chats.rec" >"$T/out" 2>"$T/err"
	cmp "$T/want" "$T/chats.rec"
	[ ! -s "$T/out" ]
	nothing_beside chats.rec
	$TOKENS -o - "$T/in" 2>"$T/err" | cmp "$T/want" -
	$TOKENS -o /dev/stdout "$T/in" 2>"$T/err" | cat | cmp "$T/want" -
	$TOKENS -o /dev/null "$T/in" 2>"$T/err"
	[ -c /dev/null ]
	$TOKENS --decode -o "$T/text" "$T/chats.rec"
	[ "$(wc -l <"$T/text")" = 600 ]
	[ "$(umask 027; rm "$T/chats.rec"; $TOKENS "$T/in" -o "$T/chats.rec" 2>"$T/err"; stat -c %a "$T/chats.rec")" = 640 ]
}

@test "-o FILE: after a failure nothing is left, and an older FILE stays" {
	{ documents 600; echo '{"text": 3}'; } >"$T/in"
	fails_with 65 $TOKENS "$T/in" -o "$T/chats.rec"
	nothing_beside
	echo old >"$T/chats.rec"
	fails_with 65 $TOKENS "$T/in" -o "$T/chats.rec"
	nothing_beside chats.rec
	[ "$(cat "$T/chats.rec")" = old ]
	echo '{"text": "a"}' >"$T/in"                   # no tokens to train on
	fails_with 65 $TOKENS "$T/in" -o "$T/chats.rec"
	fails_with 66 $TOKENS "$T/nowhere" -o "$T/chats.rec"
	nothing_beside chats.rec
	[ "$(cat "$T/chats.rec")" = old ]
}

# bats test_tags=slow
@test "-o FILE: while it is written FILE is not there; HUP, INT and TERM leave nothing, and the exit code tells" {
	mkfifo "$T/pipe"
	local signal want
	for signal in HUP:129 INT:130 TERM:143; do
		spawn tokens env --default-signal=HUP,INT,TERM $TOKENS "$T/pipe" -o "$T/chats.rec"
		exec 9>"$T/pipe"
		documents 30000 >&9
		eventually sh -c 'ls "$1".*.part' sh "$T/chats.rec"
		[ ! -e "$T/chats.rec" ]
		kill -"${signal%:*}" "$PID"
		exec 9>&-
		exits "${signal#*:}" wait "$PID"
		nothing_beside
	done
	spawn tokens $TOKENS "$T/pipe" -o "$T/chats.rec"
	exec 9>"$T/pipe"
	documents 30000 >&9
	eventually sh -c 'ls "$1".*.part' sh "$T/chats.rec"
	kill -9 "$PID"
	exec 9>&-
	[ ! -e "$T/chats.rec" ]
}

@test "-o FILE that cannot be written exits 74, one that is read exits 64; a link stays one" {
	documents 2 >"$T/in"
	fails_with 74 $TOKENS "$T/in" -o "$T/nowhere/chats.rec"
	fails_with 74 $TOKENS "$T/in" -o "$T"
	fails_with 64 $TOKENS "$T/in" -o "$T/in"
	[ "$(wc -l <"$T/in")" = 2 ]
	ln -s chats.rec "$T/link"
	$TOKENS "$T/in" -o "$T/link" 2>"$T/err"
	[ -L "$T/link" ]
	[ -s "$T/chats.rec" ]
}

@test "-o FILE is whole even if nobody reads the messages" {
	documents 2 >"$T/in"
	$TOKENS "$T/in" -o "$T/chats.rec" 2> >(exec true)
	[ -s "$T/chats.rec" ]
}
